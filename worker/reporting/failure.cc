// SPDX-License-Identifier: Apache-2.0
#include "worker/reporting/failure.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr char kReasonPayload[] = "terrace/reason";
constexpr char kCauseKey[] = "cause";
// A rank that ends by itself leaves its cause before its peers can miss it; a store behind a daemon
// takes a moment to pass it on.
constexpr int64_t kCausePatienceMs = 100;

}  // namespace

absl::Status WithReason(absl::Status status, v1::Reason reason) {
  if (!status.ok() && !status.GetPayload(kReasonPayload).has_value()) {
    status.SetPayload(kReasonPayload, absl::Cord(v1::Reason_Name(reason)));
  }
  return status;
}

v1::Reason ReasonOf(const absl::Status& status) {
  if (status.ok()) return v1::REASON_NONE;
  v1::Reason reason = v1::REASON_INTERNAL;
  const auto payload = status.GetPayload(kReasonPayload);
  if (payload.has_value() && v1::Reason_Parse(std::string(*payload), &reason)) return reason;
  return absl::IsUnavailable(status) ? v1::REASON_RANK_DIED : v1::REASON_INTERNAL;
}

absl::Status OfDrive(const absl::Status& status) {
  if (absl::IsInternal(status)) return status;
  const absl::StatusCode code =
      absl::IsUnavailable(status) ? absl::StatusCode::kAborted : status.code();
  return WithReason(absl::Status(code, status.message()), v1::REASON_RANK_DIED);
}

absl::Status ShareCause(uint32_t rank, const absl::Status& own, RendezvousStore* store) {
  if (own.ok() || store == nullptr) return own;
  if (absl::IsUnavailable(own)) {
    const auto found = store->Wait({kCauseKey}, kCausePatienceMs);
    if (found.ok()) {
      const std::vector<char>& cause = found->front();
      return WithReason(absl::UnavailableError(std::string(cause.begin(), cause.end())),
                        ReasonOf(own));
    }
  }
  const std::string cause = absl::StrCat("rank ", rank, " failed: ", own.message());
  // Without it the others name this rank: less, but not wrong.
  store->Set(kCauseKey, std::vector<char>(cause.begin(), cause.end())).IgnoreError();
  return own;
}

}  // namespace terrace
