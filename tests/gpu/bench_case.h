// What the kernel benchmarks measure: ops with the shapes of the models that Terrace is compared
// on, and the bound that each is held to on a GPU.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace terrace::kernels::bench {

// What a case's time is compared with.
enum class Measure {
  kLibrary,    // FLOP/s, against the best of cuBLASLt's algorithms for the product
  kFlops,      // FLOP/s, against a number
  kBandwidth,  // bytes/s, against the measured rate of copies
};

struct Case {
  std::string name;
  Op op = Op::kMatmul;
  OpAttrs attrs;
  std::vector<TensorShape> operands;
  Measure measure = Measure::kBandwidth;
  // The least on a GPU: a share of what it is compared with, or FLOP/s of H100 and H200. 0: none.
  double bound = 0;
};

// `small`: for rehearsals on a CPU, all dimensions of rows cut down.
std::vector<Case> AllCases(bool small);

}  // namespace terrace::kernels::bench
