// What every op computes, in double and as plainly as possible: the judge of all backends.
//
// In: operand values in row-major order without gaps, one vector an operand, empty where absent.
// Out: the written and updated operands' vectors are replaced. Rounds nothing, except the operands
// of a kBF16 matrix product. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "kernels/op.h"

namespace terrace::kernels::conformance {

using Values = std::vector<double>;

// REQUIRES: CheckShapes is empty; read and updated operands have as many values as their shape has
// elements.
void RunReference(Op op, const OpAttrs& attrs, std::span<const TensorShape> shapes,
                  std::span<Values> operands);

// The nearest bf16 value, ties to even.
double RoundToBF16(double value);
double RoundToF16(double value);
// `value` as an operand of that type holds it.
double RoundTo(DType dtype, double value);

}  // namespace terrace::kernels::conformance
