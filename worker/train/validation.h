// Which evaluation was the best, and whether training ends for want of a better one (EarlyStop of
// proto/v1/program.proto).
//
// Each rank has its own; the losses are sums over all ranks, so that all come to the same end.
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "proto/v1/program.pb.h"
#include "worker/checkpoint/training_state.h"

namespace terrace {

class Validation {
 public:
  // Borrows the rules.
  explicit Validation(const v1::StepRules& rules) : rules_(rules.early_stop()) {}

  // Goes on from a checkpoint.
  void Resume(const ValidationState& kept) { state_ = kept; }
  // After each evaluation. True when it is the best so far; a loss that is not finite never is.
  bool Add(int64_t step, double loss);
  // So many evaluations in a row were no better that training ends.
  bool exhausted() const {
    return rules_.evaluations() > 0 && state_.worse >= rules_.evaluations();
  }
  const ValidationState& state() const { return state_; }

 private:
  const v1::EarlyStop& rules_;
  ValidationState state_;
};

}  // namespace terrace
