// SPDX-License-Identifier: Apache-2.0
#include "worker/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace terrace {

double LearningRate(const v1::StepRules& rules, int64_t step) {
  const double peak = rules.learning_rate(), low = rules.min_learning_rate();
  const int64_t warmup = rules.warmup_steps();
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double decay_steps = static_cast<double>(std::max<int64_t>(rules.steps() - warmup, 1));
  const double progress = std::min(static_cast<double>(step - warmup) / decay_steps, 1.0);
  switch (rules.schedule()) {
    case v1::StepRules::LINEAR:
      return peak + (low - peak) * progress;
    case v1::StepRules::COSINE:
      return low + 0.5 * (peak - low) * (1 + std::cos(std::numbers::pi * progress));
    default:
      return peak;
  }
}

void FillSchedule(const v1::StepRules& rules, int64_t step, float factor, std::span<float, 4> out) {
  const double t = static_cast<double>(step + 1);
  out[0] = static_cast<float>(LearningRate(rules, step));
  out[1] = static_cast<float>(1 - std::pow(rules.beta1(), t));
  out[2] = static_cast<float>(1 - std::pow(rules.beta2(), t));
  out[3] = factor;
}

}  // namespace terrace
