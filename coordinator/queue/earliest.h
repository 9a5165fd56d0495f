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

// Of these workers, by index, those on which the job could start first; of as early ones those with
// the fewest free devices now, so that the others stay free. No nodes: it is not known when.
Earliest EarliestFor(const Need& need, absl::Span<const size_t> matching,
                     absl::Span<const QueueNode> nodes);

// The job holds devices there from `earliest` until `until_ms`: those that are free first.
void Hold(const Need& need, const Earliest& earliest, int64_t until_ms,
          std::vector<QueueNode>* nodes);

}  // namespace terrace
