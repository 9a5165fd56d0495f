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
  Format format;  // int8_linear or fp8
};

// The same block of several parts, whose codes and scales lie so far apart.
struct PartsOfBlock {
  BlockOfCodes first;
  int64_t parts;
  int64_t code_stride;
  int64_t scale_stride;
};

}  // namespace terrace::kernels::cpu
