// What broke a gang, or holds up its start, of all that its ranks and workers report. Pure and
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/life/job_state.h"

namespace terrace {

struct GangFailure {
  v1::Reason reason = v1::REASON_NONE;  // NONE: nothing failed
  std::string message;
  const RankView* rank = nullptr;  // that failed, or whose worker did
};

// When one rank dies its peers fail for want of it, so a reason that a restart
// cannot cure wins, then a rank whose memory ran out, then a lost worker, then the first rank.
GangFailure FindFailure(absl::Span<const RankView> ranks, bool missing_is_failure);

// From the last sign of life of the rank that was lost, or of its worker, until now: of a worker by
// this machine's clock, of a rank by that of its own, which tells the time with each report. 0
// where nobody was lost (null).
double DetectionSeconds(const RankView* lost, int64_t unix_ms);

// Of a gang that starts: the rank that is furthest behind, and what it does, as a sentence.
std::string WhatStartWaitsFor(absl::Span<const RankView> ranks);

// Some rank is known to live.
bool HasLiveRank(absl::Span<const RankView> ranks);

// What is known of a gang that broke, and whose other ranks were stopped then, once they have said
// their last: as it was found, except that a rank which lived then and failed since for a reason of
// its own, one that a restart cannot cure or memory that ran out, is the cause after all.
std::vector<RankView> WithLastWords(std::vector<RankView> found, absl::Span<const RankView> now);

}  // namespace terrace
