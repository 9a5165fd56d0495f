// The constants of one step of an optimizer. Internal to the kernels of updates, in a header
// because their files are compiled once for each instruction set.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/op.h"
#include "kernels/rounding.h"
#include "kernels/tensor_view.h"

namespace terrace::kernels::cpu {

struct UpdateStep {
  float grad_scale = 0;
  float penalty = 0;  // what of the weight is added to the gradient
  float decay = 0;    // 1 - learning rate * weight decay
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float inverse_sqrt_correction2 = 0;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
  float minus_step_size = 0;      // - learning rate / (1 - beta1^t)
  float minus_learning_rate = 0;  // of rules without that correction
};

UpdateStep StepOf(const UpdateAttrs& update, std::span<const TensorView> operands);
// grad_scale says that this step changes nothing.
bool SkipsStep(std::span<const TensorView> operands);

// Whose random bits the elements of one tile are rounded with.
struct TileRounding {
  std::span<const RoundingPart> parts;
  uint32_t step = 0;
  int64_t position = 0;  // of the tile in the operand
};

// A block whose moments share their scales. `v` and `v_scale`: null where the rule keeps one
// moment.
struct Int8Block {
  const void* grad = nullptr;
  DType grad_type = DType::kF32;
  float* param = nullptr;
  uint8_t* m = nullptr;
  uint8_t* v = nullptr;
  float* m_scale = nullptr;
  float* v_scale = nullptr;
  int64_t count = 0;  // elements, at most kInt8Block
};

}  // namespace terrace::kernels::cpu
