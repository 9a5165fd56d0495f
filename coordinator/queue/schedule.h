// Which waiting jobs start now, which devices are kept for whom, what all others wait for and when
// they may start: the policy of the queue (docs/queue.md, decision 31).
//
// Jobs are considered by priority, then in the order of their submission. A gang starts as a whole
// or not at all. The first job that must wait for devices gets a reservation: the earliest time at
// which enough of them are free together by the planned ends of what holds them. A job behind it
// may start before it (EASY backfill) on devices that the reservation does not need, or on any if
// it is planned to end before. Where that time is not known, all workers that match the first job
// are kept for it. Jobs that match none of the workers of a reservation get reservations of their
// own. A job that must wait for the end of another, or whose owner's jobs hold as many devices as a
// quota allows, or of whose array as many jobs run as may, waits and nothing is kept for it.
//
// Pure and deterministic: the time is an argument. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/queue/need.h"
#include "coordinator/queue/options.h"

namespace terrace {

// Of the jobs that wait, the first so many get an estimated start.
inline constexpr size_t kJobsEstimatedMax = 32;

// Who submits jobs.
struct QueueOwner {
  std::string_view name;
  uint32_t devices_held = 0;   // by jobs that are placed
  uint32_t devices_quota = 0;  // that they may hold together; 0: any number
  TierBytes bytes_held = {};
  TierBytes bytes_quota = {};  // as above
};
inline constexpr size_t kNoOwner = SIZE_MAX;

// Jobs of which only so many may hold devices at a time.
struct QueueArray {
  std::string_view name;
  uint32_t running = 0;
  uint32_t running_max = 0;  // 0: any number
};
inline constexpr size_t kNoArray = SIZE_MAX;

// Views are borrowed for the call.
struct QueuedJob {
  std::string_view id;
  Need need;
  uint32_t ranks = 1;               // at most need.nodes * need.devices
  double priority = 0;              // the higher starts first
  int64_t submitted_ms = 0;         // of the same priority the first starts first
  int64_t planned_ms = kUnknownMs;  // that it will hold its devices
  TierBytes bytes = {};             // of all its ranks, as planned
  size_t owner = kNoOwner;          // index
  size_t array = kNoArray;          // index
  // What must happen before it may take devices, as a sentence; empty: nothing. Nothing is kept for
  // it meanwhile.
  std::string waits_first = {};
};

enum class WaitFor { kDevices, kWorker, kPriority, kDependency, kQuota, kArray };

// One of the reasons why a job waits, with a sentence.
struct WaitReason {
  WaitFor what = WaitFor::kDevices;
  std::string text;
};

// Why a job waits and when it may start. Shared by jobs that are told the same, of which there may
// be thousands.
struct WaitStory {
  std::vector<WaitReason> reasons;  // at least one
  int64_t starts_ms = kUnknownMs;   // estimated
  std::string estimate;             // what the estimate rests on, or why there is none
};

// Of a job that no worker could hold.
WaitStory NoWorkerStory(std::string text);
// "needs 1 worker with 4 devices; 0 of the 8 devices on 2 matching workers are free now, and job
// a-1 is ahead of it".
std::string MessageOf(const WaitStory& story);

struct RankPlace {
  size_t node = 0;  // index
  uint32_t device = 0;
};

struct QueueDecision {
  size_t job = 0;                          // index
  std::vector<RankPlace> ranks;            // empty: the job waits
  std::shared_ptr<const WaitStory> waits;  // of a job that waits
};

// One decision for each of `jobs`, in the order in which they were considered.
std::vector<QueueDecision> ScheduleQueue(absl::Span<const QueuedJob> jobs,
                                         std::vector<QueueNode> nodes, int64_t now_ms,
                                         std::vector<QueueOwner> owners = {},
                                         std::vector<QueueArray> arrays = {});

}  // namespace terrace
