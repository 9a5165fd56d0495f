// Runs op cases on a backend and judges the results: against the reference in double, with a bound
// chosen per op; for gradients also against finite differences of the forward reference; and bit
// for bit across thread counts.
//
// A backend is one function, so a new one (CUDA) runs the same suite by adding one small test file;
// see cpu_conformance_test.cc. Not thread-safe: GoogleTest expectations inside.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <iosfwd>
#include <span>

#include "kernels/kernel.h"
#include "tests/conformance/op_case.h"

namespace terrace::kernels::conformance {

// Runs one op on host memory: `operands` may be strided, absent (no dims), or share memory.
using Backend = std::function<Status(Op op, const OpAttrs& attrs,
                                     std::span<const TensorView> operands, int threads)>;

// The operands' shapes, for GoogleTest's messages.
void PrintTo(const OpCase& op_case, std::ostream* out);

// The result is the reference's within the op's bound; nothing but outputs has changed, gaps
// between rows included.
void ExpectMatchesReference(const Backend& backend, const OpCase& op_case);

// 1, 2 and 3 threads give the same bytes.
void ExpectSameForAnyThreads(const Backend& backend, const OpCase& op_case);

// The gradient that the backend computes is the slope of the forward reference along random
// directions. REQUIRES: op_case is one of DifferentiableCases().
void ExpectMatchesFiniteDifferences(const Backend& backend, const OpCase& op_case);

}  // namespace terrace::kernels::conformance
