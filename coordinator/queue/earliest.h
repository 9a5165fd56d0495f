// When the devices that a job needs are free together, by the planned ends of what holds them.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/queue/need.h"

namespace terrace {

struct Earliest {
  int64_t at_ms = kUnknownMs;  // kFreeNow: now
  std::vector<size_t> nodes;   // of which `need.devices` are free then; as many as are needed
};

// Finds the workers among `matching` (indexes) on which the job could start first. Where several
// are free at the same time it takes those with the fewest free devices now, so that the others
// stay free. The result has no nodes where the time is not known.
Earliest EarliestFor(const Need& need, absl::Span<const size_t> matching,
                     absl::Span<const QueueNode> nodes);

// Marks the devices that are free first as held by the job from `earliest` until `until_ms`.
void Hold(const Need& need, const Earliest& earliest, int64_t until_ms,
          std::vector<QueueNode>* nodes);

}  // namespace terrace
