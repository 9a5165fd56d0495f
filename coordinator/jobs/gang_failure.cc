// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/gang_failure.h"

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

std::string Describe(const RankView& view) {
  switch (view.presence) {
    case Presence::kLost:
      return absl::StrCat("worker ", view.worker, " with rank ", view.rank, " was lost");
    case Presence::kMissing:
      return absl::StrCat("worker ", view.worker, " no longer has rank ", view.rank);
    default:
      return absl::StrCat("rank ", view.rank, " on ", view.worker, ": ",
                          view.report.message().empty() ? "failed" : view.report.message());
  }
}

}  // namespace

GangFailure FindFailure(absl::Span<const RankView> ranks, bool missing_is_failure) {
  GangFailure found;
  int found_weight = 0;
  for (const RankView& view : ranks) {
    int weight = 0;
    v1::Reason reason = v1::REASON_RANK_DIED;
    if (view.presence == Presence::kLost) {
      weight = 2;
      reason = v1::REASON_WORKER_LOST;
    } else if (view.presence == Presence::kMissing && missing_is_failure) {
      weight = 1;
    } else if (view.presence == Presence::kReported && view.report.state() == v1::RANK_FAILED) {
      if (view.report.reason() != v1::REASON_NONE) reason = view.report.reason();
      weight = IsPermanent(reason) ? 4 : reason == v1::REASON_OUT_OF_MEMORY ? 3 : 1;
    }
    if (weight <= found_weight) continue;
    found_weight = weight;
    found = {reason, Describe(view), &view};
  }
  return found;
}

}  // namespace terrace
