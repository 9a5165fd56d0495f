// Which states a rule of optimizers keeps of a tensor beside its weights, and of which shape: of
// all rules but the factored ones (OptimizerRow in kernels/optimizer_rule.h) moments of the
// tensor's.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/optimizer_rule.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Of a factored rule: one element a row or a column of the tensor.
inline constexpr std::array<v1::StateKind, 4> kFactorKinds = {v1::ROW_MOMENT, v1::COLUMN_MOMENT,
                                                              v1::ROW_ERROR, v1::COLUMN_ERROR};

bool IsFactor(v1::StateKind kind);

// In the order of the operands of the rule's op, scales of blocks aside. `averages`: whether
// steps of Adafactor are averaged (StepRules.beta1 is above 0), so that it keeps a first moment.
std::vector<v1::StateKind> MomentKinds(const kernels::OptimizerRow& rule, bool is_matrix,
                                       bool averages);

// Of a state of a tensor of that shape.
std::vector<int64_t> MomentShape(v1::StateKind kind, const std::vector<int64_t>& shape);

}  // namespace terrace
