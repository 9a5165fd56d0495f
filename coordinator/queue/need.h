// What a job needs of a cluster, what workers have, and the sentences about both.
//
// Plain data and pure functions. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace terrace {

// Times are Unix milliseconds.
inline constexpr int64_t kFreeNow = 0;
inline constexpr int64_t kSoon = 1;  // something holds it that is about to go
inline constexpr int64_t kUnknownMs = std::numeric_limits<int64_t>::max();

// `nodes` workers with these devices each.
struct Need {
  uint32_t nodes = 1;
  uint32_t devices = 1;      // per node
  uint32_t threads = 0;      // per device; 0: any
  int64_t device_bytes = 0;  // 0: any
  bool cuda = false;
  bool either = false;  // the job did not say which
  auto operator<=>(const Need&) const = default;
};

// A worker as the queue sees it.
struct QueueNode {
  std::string name;
  uint32_t threads_per_device = 1;
  int64_t device_memory_bytes = 0;  // each; 0: not limited
  bool cuda = false;
  bool ready = true;     // false: it is silent at the moment and takes no ranks
  bool drained = false;  // it takes no ranks, and nothing counts on it
  std::string problem;   // why it takes no part in jobs of several workers; empty: it does
  // Of each device: when what holds it is planned to end, which may have passed. kFreeNow: nothing
  // holds it; kUnknownMs: nobody can say.
  std::vector<int64_t> free_at_ms;

  uint32_t devices() const { return static_cast<uint32_t>(free_at_ms.size()); }
};

// Whether the worker could hold its share of the job, were it free.
bool Matches(const Need& need, const QueueNode& node);
// Devices that are free at that time; none of a worker that is silent.
uint32_t FreeDevices(const QueueNode& node, int64_t at_ms = kFreeNow);

// "2 workers with 4 CUDA devices of 79.6 GiB each".
std::string Describe(const Need& need);
// "needs 2 workers with 4 devices each; 1 of the 3 registered matches (w0 offers 2 devices with 4
// threads): start more workers or ask for less under resources"
std::string NoMatchText(const Need& need, size_t matching, absl::Span<const QueueNode> nodes);
// "needs 2 workers with 4 devices each; 3 of the 8 devices on 2 matching workers are free now (0 of
// the 2 workers needed have enough)". `matching` are indexes of `nodes`.
std::string BusyText(const Need& need, absl::Span<const size_t> matching,
                     absl::Span<const QueueNode> nodes);

}  // namespace terrace
