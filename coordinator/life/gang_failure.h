// Finds out what broke a gang, or what holds up its start, from the reports of its ranks and
// workers.
//
// Pure. Thread-safe: no state.
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
  const RankView* rank = nullptr;  // the one that failed, or whose worker did
};

// When one rank dies its peers fail for want of it, so a reason that a restart
// cannot cure wins, then a rank whose memory ran out, then a lost worker, then the first rank.
GangFailure FindFailure(absl::Span<const RankView> ranks, bool missing_is_failure);

// Seconds from the last sign of life of the rank that was lost, or of its worker, until now. Signs
// of a worker are timed by this machine's clock; a rank tells its own machine's time with each
// report. The result is 0 where nobody was lost (null).
double DetectionSeconds(const RankView* lost, int64_t unix_ms);

// Says which rank of a gang that starts is furthest behind, and what it does.
std::string WhatStartWaitsFor(absl::Span<const RankView> ranks);

// Some rank is known to live.
bool HasLiveRank(absl::Span<const RankView> ranks);

// What is known of a broken gang once the ranks that were stopped with it have sent their last
// reports. It is what was `found` when it broke, with one exception: a rank that lived then, and
// has failed since for a reason that a restart cannot cure or because memory ran out, is the cause
// after all.
std::vector<RankView> WithLastWords(std::vector<RankView> found, absl::Span<const RankView> now);

}  // namespace terrace
