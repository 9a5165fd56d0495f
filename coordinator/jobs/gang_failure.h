// What broke a gang, of all that its ranks and workers report. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/types/span.h"
#include "coordinator/jobs/job_state.h"

namespace terrace {

struct GangFailure {
  v1::Reason reason = v1::REASON_NONE;  // NONE: nothing failed
  std::string message;
  const RankView* rank = nullptr;  // that failed, or whose worker did
};

// When one rank dies its peers fail for want of it, so a reason that a restart
// cannot cure wins, then a rank whose memory ran out, then a lost worker, then the first rank.
GangFailure FindFailure(absl::Span<const RankView> ranks, bool missing_is_failure);

}  // namespace terrace
