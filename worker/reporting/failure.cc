// SPDX-License-Identifier: Apache-2.0
#include "worker/reporting/failure.h"

#include <string>

#include "absl/strings/cord.h"

namespace terrace {
namespace {

constexpr char kReasonPayload[] = "terrace/reason";

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

}  // namespace terrace
