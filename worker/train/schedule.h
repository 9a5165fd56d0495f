// The learning rate of a step: warm-up, then the course that the schedule says. Pure and
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "proto/v1/program.pb.h"

namespace terrace {

// `step` s is 0-based. With W = warmup_steps, S = steps, from the initial rate i over the peak to
// the minimum:
//   warm-up, s < W: i + (peak - i) (s + 1) / W; ONE_CYCLE, with p = s / (W - 1): along the cosine
//   i + (peak - i) (1 - cos(pi p)) / 2.
// Then, with p = (s - W) / (S - W), the minimum plus (peak - minimum) times
//   LINEAR 1 - p; COSINE (1 + cos(pi p)) / 2 (Loshchilov and Hutter 2016, arXiv 1608.03983);
//   COSINE_RESTARTS the same of `cycles` p, its whole part left out; POLYNOMIAL (1 - p)^power.
//   ONE_CYCLE as COSINE with p = (s - W + 1) / (S - W) (Smith and Topin 2017, arXiv 1708.07120, as
//   torch's OneCycleLR).
//   WSD (Hu et al. 2024, arXiv 2404.06395): 1, and in the last D = decay_steps with
//   p = (s - S + D) / D by `decay` 1 - p, (1 + cos(pi p)) / 2, 2^(1 - p) - 1 or 1 - sqrt(p), as
//   Megatron-LM does.
// EXPONENTIAL: peak (minimum / peak)^p. INVERSE_SQRT (Vaswani et al. 2017, arXiv 1706.03762):
// peak sqrt(max(W, 1) / (s + 1)), not below the minimum. CONSTANT: the peak. Whatever the schedule,
// with relative_step min(0.01, 1 / sqrt(s + 1)) (Shazeer and Stern 2018, arXiv 1804.04235).
double LearningRate(const v1::StepRules& rules, int64_t step);

// What LOAD_SCHEDULE provides: {learning rate, 1 - beta1^t, 1 - beta2^t, factor} with t = step + 1.
// Of ADAFACTOR, whose beta2 changes, the third is 1 - beta2 of the step, t^beta2_decay.
void FillSchedule(const v1::StepRules& rules, int64_t step, float factor, std::span<float, 4> out);

}  // namespace terrace
