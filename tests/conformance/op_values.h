// The random operands of an op case: values in the ranges that ops expect, in their element types;
// for a gradient, what its forward op left.
//
// The same seed gives the same values on every machine. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tests/conformance/op_case.h"
#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

using Random = std::mt19937_64;

inline constexpr uint64_t kSeed = 20261121;

// Nearly normal: the sum of four uniform numbers, all from one draw.
double Normal(Random* random);

std::vector<Values> RandomOperands(const OpCase& op_case, Random* random);

// Of a forward op random ones; of a gradient those that follow from its forward op, which are drawn
// first.
std::vector<Values> MakeOperands(const OpCase& op_case, uint64_t seed);

}  // namespace terrace::kernels::conformance
