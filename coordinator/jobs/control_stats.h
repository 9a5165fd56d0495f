// What the coordinator's /metrics shows, as plain values: the control loop fills them, and whoever
// serves them takes a copy that the loop does not wait for.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "coordinator/history/spent_time.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// Jobs that have series of their own; those beyond are only counted.
inline constexpr size_t kJobsShownMax = 1000;
// For scrapes a minute apart to see how a job ended.
inline constexpr int64_t kEndedJobShownNs = 120'000'000'000;

// Of a job that has been placed.
struct JobStats {
  std::string id;
  v1::Progress progress;
  SpentUntil spent;
  bool runs = false;
  int64_t sequence_length = 0;
  int64_t checkpoint_every_steps = 0;  // 0: none but the last
  int64_t restarts = 0;
  int64_t restarts_without_progress = 0;
  int64_t submitted_unix_ms = 0;
  int64_t first_step_unix_ms = 0;      // 0: none yet
  int64_t training_since_unix_ms = 0;  // since its present start; 0: it does not train
  int64_t planned_arena_bytes = 0;
  double planned_step_seconds = 0;
  int64_t hang_rank = -1;   // that it waits for; -1: it does not hang
  double hang_seconds = 0;  // since that one did anything
  int64_t slow_ranks = 0;
  double held_seconds = 0;         // that it has had its devices
  int64_t time_limit_seconds = 0;  // 0: none
};
JobStats StatsOf(const v1::Job& job, int64_t unix_ms);

struct ControlStats {
  std::map<v1::JobState, int64_t> jobs;                 // all in the store
  std::map<v1::Reason, int64_t> pending;                // QUEUED and RECOVERING jobs
  std::map<v1::Reason, int64_t> pending_since_unix_ms;  // of the first of them
  std::map<std::string, int64_t> nodes;                 // by state
  std::vector<JobStats> shown;                          // at most kJobsShownMax
  int64_t not_shown = 0;

  // Since this coordinator started.
  std::map<v1::Reason, int64_t> restarts;      // REASON_NONE: from a drained worker
  std::map<std::string, int64_t> adjustments;  // by fallback
  std::map<std::string, int64_t> hangs;        // by what the process did (HangLabel)
  int64_t slow_ranks = 0;                      // that were told
  int64_t preemptions = 0;                     // of jobs, by others
  int64_t time_limits = 0;                     // that jobs reached
  Histogram queue_seconds{{0.1, 1, 10, 60, 600, 3600, 21600, 86400}};
  Histogram first_step_seconds{{1, 5, 10, 30, 60, 300, 1800, 3600, 86400}};
  Histogram detection_seconds{{0.05, 0.1, 0.5, 1, 2, 5, 10, 60, 600}};
  Histogram recovery_seconds{{0.5, 1, 5, 10, 30, 60, 300, 1800, 3600}};
  Histogram pass_seconds{{1e-5, 1e-4, 1e-3, 0.01, 0.1, 1}};
  Histogram store_write_seconds{{1e-4, 1e-3, 0.01, 0.1, 1, 10}};
};

}  // namespace terrace
