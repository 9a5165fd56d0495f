// SPDX-License-Identifier: Apache-2.0
#include "worker/train/loss_scale.h"

#include <algorithm>
#include <bit>

namespace terrace {
namespace {

// Gradients that are all zero would let it grow for ever.
constexpr double kLargest = 0x1p60;

}  // namespace

LossScale::LossScale(const v1::StepRules& rules) : rules_(rules) {
  if (!scales()) return;
  state_.scale = rules.loss_scale().initial();
  state_.hysteresis = rules.loss_scale().hysteresis();
}

void LossScale::Resume(const LossScaleState& kept) {
  if (!scales() || kept.scale <= 0) return;
  const double scale = state_.scale;
  state_ = kept;
  if (fixed()) state_.scale = scale;
}

// A power of two: multiplying by it and dividing again changes no bit of what stays in range.
float LossScale::Factor() const {
  if (!scales()) return 1;
  const auto tokens = static_cast<uint64_t>(std::max<int64_t>(1, rules_.loss_scale().tokens()));
  return static_cast<float>(state_.scale / static_cast<double>(std::bit_floor(tokens)));
}

void LossScale::Update(bool skipped) {
  state_.skipped += skipped ? 1 : 0;
  exhausted_ = false;
  if (!scales() || fixed()) return;
  const v1::LossScaleRules& rules = rules_.loss_scale();
  if (skipped) {
    state_.good_steps = 0;
    state_.hysteresis = std::max<int64_t>(state_.hysteresis - 1, 0);
    if (state_.hysteresis > 0) return;
    exhausted_ = state_.scale <= rules.min();
    state_.scale = std::max(state_.scale / 2, rules.min());
    return;
  }
  if (++state_.good_steps < rules.window()) return;
  state_.good_steps = 0;
  state_.hysteresis = rules.hysteresis();
  state_.scale = std::min(state_.scale * 2, std::max(kLargest, state_.scale));
}

}  // namespace terrace
