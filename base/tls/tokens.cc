// SPDX-License-Identifier: Apache-2.0
#include "base/tls/tokens.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr char kPrefix[] = "terrace_";
constexpr size_t kTokenBytes = 32;
constexpr char kNoDay[] = "-";
constexpr size_t kShownBytesMax = 80;

std::string HashOf(std::string_view token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(hash), sizeof hash));
}

bool IsHash(const std::string& text) {
  return text.size() == 2 * SHA256_DIGEST_LENGTH &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

absl::StatusOr<TokenHolder> HolderIn(const std::vector<std::string>& words) {
  TokenHolder holder;
  if (words.size() != 4 || !IsHash(words[0]))
    return absl::InvalidArgumentError("must be SHA256 ROLE NAME UNTIL");
  const std::optional<Role> role = RoleNamed(words[1]);
  if (!role || *role == Role::kWorker) {
    return absl::InvalidArgumentError(absl::StrCat("the role: got \"",
                                                   CleanLine(words[1], kShownBytesMax),
                                                   "\", must be viewer, submitter or operator"));
  }
  holder.grant = {.role = *role, .name = words[2]};
  RETURN_IF_ERROR(CheckGrant(holder.grant));
  std::string error;
  if (words[3] != kNoDay &&
      !absl::ParseTime("%Y-%m-%d", words[3], absl::UTCTimeZone(), &holder.end, &error)) {
    return absl::InvalidArgumentError(absl::StrCat("until: got \"",
                                                   CleanLine(words[3], kShownBytesMax),
                                                   "\", must be a day such as 2027-01-31, or -"));
  }
  if (words[3] != kNoDay) holder.end += absl::Hours(24);  // that day is the last
  return holder;
}

}  // namespace

absl::StatusOr<std::string> MakeToken() {
  unsigned char bytes[kTokenBytes];
  if (RAND_bytes(bytes, sizeof bytes) != 1)
    return absl::InternalError("OpenSSL could not draw a token");
  return absl::StrCat(kPrefix, absl::BytesToHexString(absl::string_view(
                                   reinterpret_cast<const char*>(bytes), sizeof bytes)));
}

std::string TokenLine(std::string_view token, const TokenHolder& holder) {
  const std::string until =
      holder.end == absl::InfiniteFuture()
          ? kNoDay
          : absl::FormatTime("%Y-%m-%d", holder.end - absl::Seconds(1), absl::UTCTimeZone());
  return absl::StrCat(HashOf(token), " ", Absl(RoleName(holder.grant.role)), " ", holder.grant.name,
                      " ", until, "\n");
}

absl::StatusOr<Tokens> Tokens::Parse(std::string_view text) {
  Tokens tokens;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(Absl(text), '\n')) {
    ++number;
    const std::vector<std::string> words =
        absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    const absl::StatusOr<TokenHolder> holder = HolderIn(words);
    if (!holder.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", holder.status().message()));
    }
    if (!tokens.holders_.emplace(words[0], *holder).second)
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": the same token again"));
  }
  return tokens;
}

absl::StatusOr<TokenHolder> Tokens::Find(std::string_view token, absl::Time now) const {
  const auto found = holders_.find(HashOf(token));
  if (found == holders_.end())
    return absl::UnauthenticatedError("the token is not in the coordinator's --tokens");
  const TokenHolder& holder = found->second;
  if (now < holder.end) return holder;
  return absl::UnauthenticatedError(absl::StrCat(
      "the token of ", Absl(RoleName(holder.grant.role)), " ", holder.grant.name, " ended on ",
      absl::FormatTime("%Y-%m-%d", holder.end - absl::Seconds(1), absl::UTCTimeZone())));
}

}  // namespace terrace
