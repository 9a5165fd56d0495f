// Runs op cases on a backend and judges the results: against the reference in double, with a bound
// chosen per op; for gradients also against finite differences of the forward reference; and bit
// for bit across thread counts.
//
// Needs no test library, so that it runs on machines that have none (tests/gpu);
// op_conformance.h makes GoogleTest expectations of it. Thread-safe where the backend is.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "tests/conformance/op_case.h"
#include "tests/conformance/op_values.h"

namespace terrace::kernels::conformance {

// Runs one op on host memory: `operands` may be strided, absent (no dims), or share memory.
using Backend = std::function<Status(Op op, const OpAttrs& attrs,
                                     std::span<const TensorView> operands, int threads)>;

struct Judgement {
  std::vector<std::string> complaints;  // none: as it must be
  double worst = 0;                     // the largest error, as a part of its bound

  bool ok() const { return complaints.empty(); }
  void Complain(const std::string& what) { complaints.push_back(what); }
};

// The result is the reference's within the op's bound; nothing but outputs has changed, gaps
// between rows included.
Judgement JudgeAgainstReference(const Backend& backend, const OpCase& op_case,
                                uint64_t seed = kSeed);

// 1, 2 and 3 threads give the same bytes.
Judgement JudgeThreads(const Backend& backend, const OpCase& op_case, uint64_t seed = kSeed);

// The gradient that the backend computes is the slope of the forward reference along random
// directions. REQUIRES: op_case is one of DifferentiableCases().
Judgement JudgeFiniteDifferences(const Backend& backend, const OpCase& op_case,
                                 uint64_t seed = kSeed);

}  // namespace terrace::kernels::conformance
