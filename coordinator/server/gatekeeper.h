// Who is calling: read from the certificate or token of every call, whatever the connection said
// before, and checked against the table of access.h.
//
// TLS itself lets everybody in, so that who is refused is told why; a certificate that was shown
// there proves only that its holder has the key. So nothing may be answered without Admit().
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/tls/tokens.h"
#include "base/tls/trust.h"
#include "coordinator/server/access.h"

namespace terrace {

// Why something was refused, as /metrics names it.
enum class Refusal {
  kNoCertificate,
  kUnreadable,
  kWrongAuthority,
  kExpired,
  kNotYetValid,
  kNotForThis,
  kNoRole,
  kToken,      // it is not in the file, or has ended
  kRole,       // it may not make this call
  kNotOwn,     // it may, but not for this job or worker
  kNotPlaced,  // a worker spoke of a job that does not run there
  kNonsense,   // what a worker said cannot be
  kLimit,      // a worker went beyond a limit
  kNameTaken,  // another worker of that name is there
  kSilent,     // a worker's stream did not begin with its registration in time, or was one too many
};
inline constexpr size_t kRefusals = 15;
std::string_view RefusalName(Refusal refusal);  // "wrong_authority"

// The metadata of a call that holds a token.
inline constexpr std::string_view kAuthorizationKey = "authorization";

// What a connection and a call show.
struct Shown {
  std::string certificate, chain;  // PEM; empty: none
  std::string authorization;       // "Bearer TOKEN"; empty: none
  std::string peer;
};

class Gatekeeper {
 public:
  // `is_secure`: peers are asked who they are.
  explicit Gatekeeper(bool is_secure) : is_secure_(is_secure) {}

  // From now on peers are checked against these authorities (PEM).
  absl::Status SetAuthorities(const std::string& pem) ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on these are the tokens of people.
  void SetTokens(Tokens tokens) ABSL_LOCKS_EXCLUDED(mutex_);

  // UNAUTHENTICATED, with a sentence. Counted by Admit() alone. A token counts before a
  // certificate.
  absl::StatusOr<Caller> Identify(const Shown& shown, absl::Time now, Refusal* why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // At the beginning of each call. UNIMPLEMENTED of a path without a rule.
  absl::Status Admit(std::string_view path, const Shown& shown, absl::Time now);
  // Counts it.
  void Count(Refusal refusal) { ++refused_[static_cast<size_t>(refusal)]; }

  bool is_secure() const { return is_secure_; }
  int64_t refused(Refusal refusal) const { return refused_[static_cast<size_t>(refusal)]; }

 private:
  const bool is_secure_;
  std::array<std::atomic<int64_t>, kRefusals> refused_{};
  absl::Mutex mutex_;
  std::optional<Trust> trust_ ABSL_GUARDED_BY(mutex_);
  Tokens tokens_ ABSL_GUARDED_BY(mutex_);
  // What certificates were found to say, by their PEM: each call of a connection shows the same.
  std::unordered_map<std::string, VerifiedPeer> verified_ ABSL_GUARDED_BY(mutex_);
  // Of who is refused a line is logged once a second, with the number of those in between.
  int64_t logged_unix_s_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unlogged_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
