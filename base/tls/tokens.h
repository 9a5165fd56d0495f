// Tokens of people: a file with a line for each, "SHA256 ROLE NAME UNTIL", where SHA256 is the hash
// of the token in hexadecimal and UNTIL a day (2027-01-31) or "-". '#' begins a comment.
//
// A token is 32 random bytes, so its plain hash tells nothing of it. Pure but for MakeToken.
// Thread-safe after Parse.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/identity.h"

namespace terrace {

// "terrace_" and 64 hexadecimal digits, drawn by OpenSSL.
absl::StatusOr<std::string> MakeToken();

struct TokenHolder {
  Grant grant;
  absl::Time end = absl::InfiniteFuture();
};

// A line of the file, with its end.
std::string TokenLine(std::string_view token, const TokenHolder& holder);

class Tokens {
 public:
  // INVALID_ARGUMENT, with the number of the line, for one that is wrong: of a role that is none or
  // a worker's, a hash twice.
  static absl::StatusOr<Tokens> Parse(std::string_view text);

  // UNAUTHENTICATED, with a sentence: there is none, or its day has passed.
  absl::StatusOr<TokenHolder> Find(std::string_view token, absl::Time now) const;

 private:
  // By hash: to look one up by its first bytes tells nothing, since who asks does not choose them.
  std::map<std::string, TokenHolder, std::less<>> holders_;
};

}  // namespace terrace
