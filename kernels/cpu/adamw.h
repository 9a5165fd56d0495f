// The constants of one AdamW step. Internal to adamw.cc, in a header because that file is compiled
// once for each instruction set.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/rounding.h"

namespace terrace::kernels::cpu {

struct AdamwStep {
  float grad_scale = 0;
  float decay = 0;  // 1 - learning rate * weight decay
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float inverse_sqrt_correction2 = 0;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
  float minus_step_size = 0;  // - learning rate / (1 - beta1^t)
};

// Whose random bits the elements of one tile are rounded with.
struct TileRounding {
  std::span<const RoundingPart> parts;
  uint32_t step = 0;
  int64_t position = 0;  // of the tile in the operand
};

}  // namespace terrace::kernels::cpu
