// Where a job stands between two steps beside its tensors: what a checkpoint keeps of it. The same
// on all ranks, whatever the layout.
//
// Thread-safe: plain values.
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

// The best evaluation so far.
struct ValidationState {
  int64_t best_step = 0;  // 0: there was none
  double best_loss = 0;   // nats a token
  int64_t worse = 0;      // evaluations since then, none of them better
  bool operator==(const ValidationState&) const = default;
};

struct TrainingState {
  LossScaleState loss_scale;
  ValidationState validation;
  bool operator==(const TrainingState&) const = default;
};

}  // namespace terrace
