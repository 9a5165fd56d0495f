// What the vectorised parts of block_codes.cc take.
//
// Internal to kernels/cpu. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/format.h"

namespace terrace::kernels::cpu {

// One block, borrowed.
struct BlockOfCodes {
  void* elements;  // `count` of them
  DType dtype;     // of the elements
  uint8_t* codes;
  float* scale;
  int64_t count;
  Format format;             // int8_linear, int4_linear, fp8 or nf4
  void* residual = nullptr;  // `count` elements, where encoding keeps what codes are not worth
  DType residual_dtype = DType::kF32;
};

// The same block of several parts, whose codes and scales lie so far apart.
struct PartsOfBlock {
  BlockOfCodes first;
  int64_t parts;
  int64_t code_stride;
  int64_t scale_stride;
};

}  // namespace terrace::kernels::cpu
