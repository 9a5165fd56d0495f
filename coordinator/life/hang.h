// Finds the ranks that a job which stands still waits for, from where all of its ranks stand. Their
// daemons see that progress from outside, also of a rank that is stopped.
//
// These are, in this order: ranks whose process is stopped; else ranks that execute something which
// needs no other rank (they compute, read or write); else ranks that are behind the others, in the
// order of activities or among the exchanges of a group. Otherwise nobody is behind, and nothing
// comes through between the ranks that stand in one exchange.
//
// Pure and thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/life/job_state.h"
#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr int kHangRanksTold = 16;
// So long a process must have been stopped: only a person lets it go on.
inline constexpr int64_t kStoppedMs = 5'000;
// So long a rank may stand in its step: at least so many ms, and so many times a step's time.
inline constexpr int64_t kStandingMs = 10'000;
inline constexpr double kStandingSteps = 3;
// The same before the first step has ended, when nobody knows how long one takes.
inline constexpr int64_t kFirstStandingMs = 60'000;
// The same while it waits for a checkpoint and no byte is read or written: a drive may sync for
// minutes.
inline constexpr int64_t kCheckpointStandingMs = 300'000;

// How long a rank may stand in a step; `step_seconds`: the longest known.
int64_t StandingMs(double step_seconds, bool has_stepped);

struct FoundHang {
  v1::Hang hang{};
  int64_t standing_ms = 0;  // the shortest of the ranks that the others wait for
};
// Finds nothing while any rank moves, unless a process is stopped. REQUIRES: all are reported.
std::optional<FoundHang> FindHang(absl::Span<const RankView> ranks, int64_t standing_ms,
                                  int64_t unix_ms);
// Whether both tell of one thing: the same ranks, in the same step, stopped or not.
bool IsSameHang(const v1::Hang& a, const v1::Hang& b);

// A rank counts as slow when it computes so much more than the middle one of its peers, who wait
// for so much of their time.
inline constexpr double kSlowComputing = 1.25;
inline constexpr double kSlowComputingMin = 0.1;  // of its time: less is noise
inline constexpr double kSlowWaitingMin = 0.1;
// Those of one stage: `stages` gives each rank's, by its place in `ranks`.
std::vector<v1::SlowRank> FindSlow(absl::Span<const RankView> ranks,
                                   absl::Span<const uint32_t> stages, int64_t unix_ms);
std::string SlowText(const v1::SlowRank& slow);
std::string SlowIsOverText(const v1::SlowRank& slow);

// For counting: "stopped", "paging", "in_io", "in_driver", "running", "waiting", "unknown";
// "connection" where nobody is behind.
std::string HangLabel(const v1::Hang& hang);
inline constexpr const char* kHangLabels[] = {"stopped", "paging",  "in_io",   "in_driver",
                                              "running", "waiting", "unknown", "connection"};

}  // namespace terrace
