// Where the loss scale of a job stands between two steps: what a checkpoint keeps of it. The same
// on all ranks, whatever the layout.
//
// Thread-safe: a plain value.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

struct LossScaleState {
  double scale = 0;        // of the next step; 0: the job has none
  int64_t good_steps = 0;  // in a row, since the last overflow or growth
  int64_t hysteresis = 0;  // overflows left before one halves the scale, that one included
  int64_t skipped = 0;     // steps of the whole job whose gradient was not finite
  bool operator==(const LossScaleState&) const = default;
};

}  // namespace terrace
