// The learning rate of a step: warm-up, then constant, linear or cosine decay. Pure and
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "proto/v1/program.pb.h"

namespace terrace {

// `step` is 0-based. Warm-up: lr * (step + 1) / warmup_steps. Then, with p = (step - warmup) /
// (steps - warmup): linear from lr to min, or cosine min + (lr - min) (1 + cos(pi p)) / 2
// (Loshchilov and Hutter 2016, arXiv 1608.03983).
double LearningRate(const v1::StepRules& rules, int64_t step);

// What LOAD_SCHEDULE provides: {learning rate, 1 - beta1^t, 1 - beta2^t, factor} with t = step + 1.
void FillSchedule(const v1::StepRules& rules, int64_t step, float factor, std::span<float, 4> out);

}  // namespace terrace
