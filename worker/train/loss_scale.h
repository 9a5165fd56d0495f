// The loss scale from step to step (LossScaleRules of proto/v1/program.proto says how), as
// DeepSpeed's and Megatron-LM's, and what follows from it for the schedule.
//
// Each rank has its own; what they are told is a statistic of all ranks, so that all stay the same.
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "proto/v1/program.pb.h"
#include "worker/checkpoint/training_state.h"

namespace terrace {

class LossScale {
 public:
  // Borrows the rules. Without LossScaleRules the factor is 1 and only `skipped` is counted.
  explicit LossScale(const v1::StepRules& rules);

  // Goes on from a checkpoint; one without a loss scale leaves it where a job starts. A fixed scale
  // is the rules', whatever was kept.
  void Resume(const LossScaleState& kept);

  // What the gradient of the loss is multiplied by in the next step.
  float Factor() const;
  // The step whose learning rate and bias corrections `step` takes: skipped ones do not count.
  int64_t Scheduled(int64_t step) const { return scales() ? step - state_.skipped : step; }
  // After each step.
  void Update(bool skipped);

  bool scales() const { return rules_.has_loss_scale(); }
  bool fixed() const { return rules_.loss_scale().window() == 0; }
  // The last step overflowed at the smallest scale: a smaller one cannot help.
  bool exhausted() const { return exhausted_; }
  const LossScaleState& state() const { return state_; }

 private:
  const v1::StepRules& rules_;
  LossScaleState state_;
  bool exhausted_ = false;
};

}  // namespace terrace
