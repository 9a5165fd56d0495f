// SPDX-License-Identifier: Apache-2.0
#include "worker/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace terrace {

namespace {

double Cosine(double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * progress)); }

double WarmUp(const v1::StepRules& rules, int64_t step) {
  const double initial = rules.initial_learning_rate(), rise = rules.learning_rate() - initial;
  const auto warmup = static_cast<double>(rules.warmup_steps());
  if (rules.schedule() != v1::StepRules::ONE_CYCLE)
    return initial + rise * static_cast<double>(step + 1) / warmup;
  return initial + rise * (1 - Cosine(static_cast<double>(step) / std::max(warmup - 1, 1.0)));
}

// What WSD leaves of the way to the minimum, of the progress in its last steps.
double Decay(v1::StepRules::Schedule decay, double progress) {
  switch (decay) {
    case v1::StepRules::COSINE:
      return Cosine(progress);
    case v1::StepRules::EXPONENTIAL:
      return std::exp2(1 - progress) - 1;
    case v1::StepRules::MINUS_SQRT:
      return 1 - std::sqrt(progress);
    default:
      return 1 - progress;
  }
}

// Of the way from the minimum to the peak, after the warm-up; `progress`: of the steps after it.
double Coefficient(const v1::StepRules& rules, int64_t step, double progress) {
  switch (rules.schedule()) {
    case v1::StepRules::COSINE:
      return Cosine(progress);
    case v1::StepRules::COSINE_RESTARTS: {
      const double turns = static_cast<double>(rules.cycles()) * progress;
      return progress >= 1 ? 0 : Cosine(turns - std::floor(turns));
    }
    case v1::StepRules::POLYNOMIAL:
      return std::pow(1 - progress, rules.power());
    case v1::StepRules::WSD: {
      const auto decay_steps = static_cast<double>(std::max<int64_t>(rules.decay_steps(), 1));
      const double into = static_cast<double>(step - rules.steps()) + decay_steps;
      return into <= 0 ? 1 : Decay(rules.decay(), std::min(into / decay_steps, 1.0));
    }
    default:
      return 1;
  }
}

}  // namespace

double LearningRate(const v1::StepRules& rules, int64_t step) {
  const double peak = rules.learning_rate(), low = rules.min_learning_rate();
  if (rules.relative_step()) return std::min(1e-2, 1 / std::sqrt(static_cast<double>(step + 1)));
  const int64_t warmup = rules.warmup_steps();
  if (step < warmup) return WarmUp(rules, step);
  const double decay_steps = static_cast<double>(std::max<int64_t>(rules.steps() - warmup, 1));
  const double progress = std::min(static_cast<double>(step - warmup) / decay_steps, 1.0);
  switch (rules.schedule()) {
    case v1::StepRules::EXPONENTIAL:
      return peak * std::pow(low / peak, progress);
    case v1::StepRules::INVERSE_SQRT: {
      const auto scale = static_cast<double>(std::max<int64_t>(warmup, 1));
      return std::max(low, peak * std::sqrt(scale / static_cast<double>(step + 1)));
    }
    case v1::StepRules::ONE_CYCLE: {
      const double after = std::min(static_cast<double>(step - warmup + 1) / decay_steps, 1.0);
      return low + (peak - low) * Cosine(after);
    }
    case v1::StepRules::CONSTANT:
      return peak;
    case v1::StepRules::LINEAR:
      return peak + (low - peak) * progress;
    default:
      return low + (peak - low) * Coefficient(rules, step, progress);
  }
}

void FillSchedule(const v1::StepRules& rules, int64_t step, float factor, std::span<float, 4> out) {
  const double t = static_cast<double>(step + 1);
  out[0] = static_cast<float>(LearningRate(rules, step));
  out[1] = static_cast<float>(1 - std::pow(rules.beta1(), t));
  const bool by_step = rules.optimizer() == v1::ADAFACTOR;
  out[2] = static_cast<float>(by_step ? std::pow(t, rules.beta2_decay())
                                      : 1 - std::pow(rules.beta2(), t));
  out[3] = factor;
}

}  // namespace terrace
