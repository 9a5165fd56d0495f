// Which computations a probe times: each op of which training steps are made, at shapes that bound
// those of real layers on a share of a CPU or on a GPU, in fp32 and bf16; on a GPU products in
// tf32, fp16 and fp8 as well, which it may not have.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/op.h"

namespace terrace {

struct ProbeCase {
  kernels::Op op = kernels::Op::kMatmul;
  kernels::OpAttrs attrs;
  std::vector<kernels::TensorShape> operands;
};

enum class ProbeDepth {
  kBrief,     // few shapes, for a plan that nobody asked to be exact: two to three seconds
  kThorough,  // `terrace profile`
};

enum class ProbeTarget { kCpu, kGpu };

// Deterministic; the larger shapes of an op come last.
std::vector<ProbeCase> ProbeCases(ProbeDepth depth, ProbeTarget target = ProbeTarget::kCpu);

}  // namespace terrace
