// Which jobs give their devices back for a job of a higher priority that waits: those that lose the
// fewest device-seconds by it.
//
// A worker is freed by the cheapest set of gangs that makes room there, found exactly (a knapsack
// over its devices); a job that needs several workers takes the cheapest ones, one after the other,
// where a gang that was chosen for one is free for the next. So the choice is the best there is
// where gangs do not span workers.
//
// Pure and deterministic. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/queue/need.h"

namespace terrace {

// A job that holds devices.
struct HeldGang {
  std::map<size_t, uint32_t> devices;  // held, by index of the worker
  double lost_device_seconds = 0;      // when it stops and starts again
  bool may_stop = false;               // it can be asked to
  bool stops = false;                  // it has been, and its devices are soon free
};

// By index, ascending. Empty: the job finds its workers without, once those that stop already have
// stopped; or it does not find them whoever stops.
std::vector<size_t> GangsToStop(const Need& need, absl::Span<const QueueNode> nodes,
                                absl::Span<const HeldGang> gangs);

}  // namespace terrace
