// Workers and jobs for tests of the queue.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/queue/schedule.h"

namespace terrace {

inline constexpr int64_t kQueueNowMs = 1'000'000;

// Of each device when it is free, in ms from now; 0: it is.
inline QueueNode WorkerOf(std::string name, const std::vector<int64_t>& free_in_ms) {
  QueueNode node;
  node.name = std::move(name);
  node.threads_per_device = 2;
  for (const int64_t in_ms : free_in_ms) {
    const bool is_absolute = in_ms == kFreeNow || in_ms == kUnknownMs;
    node.free_at_ms.push_back(is_absolute ? in_ms : kQueueNowMs + in_ms);
  }
  return node;
}

inline QueuedJob JobOf(std::string_view id, uint32_t devices, int64_t planned_ms,
                       uint32_t nodes = 1) {
  return {.id = id,
          .need = {.nodes = nodes, .devices = devices},
          .ranks = nodes * devices,
          .planned_ms = planned_ms};
}

inline std::vector<QueueDecision> Decide(const std::vector<QueuedJob>& jobs,
                                         const std::vector<QueueNode>& nodes) {
  return ScheduleQueue(jobs, nodes, kQueueNowMs);
}

}  // namespace terrace
