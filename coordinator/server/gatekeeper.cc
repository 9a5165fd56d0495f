// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/gatekeeper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "proto/unknown_call.h"

namespace terrace {
namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr size_t kPathBytesMax = 100;
constexpr size_t kVerifiedMax = 4096;  // certificates that are remembered

constexpr std::array<std::string_view, kRefusals> kRefusalNames = {
    "no_certificate", "unreadable", "wrong_authority", "expired",    "not_yet_valid",
    "not_for_this",   "no_role",    "token",           "role",       "not_own",
    "not_placed",     "nonsense",   "limit",           "name_taken", "silent"};

Refusal RefusalOf(CertificateProblem problem) {
  switch (problem) {
    case CertificateProblem::kUnreadable:
      return Refusal::kUnreadable;
    case CertificateProblem::kWrongAuthority:
      return Refusal::kWrongAuthority;
    case CertificateProblem::kExpired:
      return Refusal::kExpired;
    case CertificateProblem::kNotYetValid:
      return Refusal::kNotYetValid;
    case CertificateProblem::kNotForThis:
      return Refusal::kNotForThis;
  }
  return Refusal::kUnreadable;
}

}  // namespace

std::string_view RefusalName(Refusal refusal) {
  return kRefusalNames[static_cast<size_t>(refusal)];
}

absl::Status Gatekeeper::SetAuthorities(const std::string& pem) {
  ASSIGN_OR_RETURN(Trust trust, Trust::FromPem(pem));
  absl::MutexLock lock(&mutex_);
  trust_ = std::move(trust);
  verified_.clear();
  return absl::OkStatus();
}

void Gatekeeper::SetTokens(Tokens tokens) {
  absl::MutexLock lock(&mutex_);
  tokens_ = std::move(tokens);
}

absl::StatusOr<Caller> Gatekeeper::Identify(const Shown& shown, absl::Time now, Refusal* why) {
  Caller caller{.peer = shown.peer};
  if (!is_secure_) return caller;
  if (!shown.authorization.empty()) {
    std::string_view token = shown.authorization;
    if (token.starts_with(kScheme)) token.remove_prefix(kScheme.size());
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<TokenHolder> holder = tokens_.Find(token, now);
    if (!holder.ok()) {
      *why = Refusal::kToken;
      return holder.status();
    }
    caller.shown = Caller::Shown::kToken;
    caller.identity.grants = {std::move(holder->grant)};
    return caller;
  }
  if (shown.certificate.empty()) {
    *why = Refusal::kNoCertificate;
    return absl::UnauthenticatedError(
        "no certificate was shown: give --tls-cert and --tls-key (`terrace certs issue` makes "
        "them), or --token-file");
  }
  caller.shown = Caller::Shown::kCertificate;
  const std::string key = shown.certificate + shown.chain;
  absl::MutexLock lock(&mutex_);
  auto found = verified_.find(key);
  // One that has run out since it was seen is looked at again, for the sentence.
  if (found != verified_.end() && (now > found->second.end || now < found->second.begin)) {
    verified_.erase(found);
    found = verified_.end();
  }
  if (found == verified_.end()) {
    CertificateProblem problem = CertificateProblem::kUnreadable;
    absl::StatusOr<VerifiedPeer> peer =
        trust_ ? trust_->Verify(shown.certificate, shown.chain, now, &problem)
               : absl::UnauthenticatedError("no authority is trusted");
    if (!peer.ok()) {
      *why = RefusalOf(problem);
      return peer.status();
    }
    if (peer->identity.grants.empty()) {
      *why = Refusal::kNoRole;
      return absl::UnauthenticatedError(absl::StrCat(
          "the certificate of ", peer->subject,
          " names no role: clients and workers need one with a URI such as "
          "terrace://submitter/NAME or terrace://worker/NAME; `terrace certs issue` makes it"));
    }
    if (verified_.size() >= kVerifiedMax) verified_.clear();
    found = verified_.emplace(key, *std::move(peer)).first;
  }
  caller.identity = found->second.identity;
  return caller;
}

absl::Status Gatekeeper::Admit(std::string_view path, const Shown& shown, absl::Time now) {
  Refusal why = Refusal::kRole;
  absl::StatusOr<Caller> caller = Identify(shown, now, &why);
  absl::Status status = caller.status();
  if (status.ok()) {
    const CallRule* rule = RuleOfPath(path);
    if (rule == nullptr) return absl::UnimplementedError(kUnknownCall);
    status = CheckCall(*rule, *caller);
    why = Refusal::kRole;
  }
  if (status.ok()) return status;
  Count(why);
  absl::MutexLock lock(&mutex_);
  ++unlogged_;
  if (const int64_t second = absl::ToUnixSeconds(now); second != logged_unix_s_) {
    logged_unix_s_ = second;
    log::Warn(
        "refused ", CleanLine(path, kPathBytesMax), ": ", status.message(),
        unlogged_ > 1 ? absl::StrCat(" (and ", unlogged_ - 1, " calls since the last line)") : "");
    unlogged_ = 0;
  }
  return status;
}

}  // namespace terrace
