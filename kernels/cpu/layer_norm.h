// What one call of the layer norm kernels works on. Internal to layer_norm.cc, in a header because
// that file is compiled once for each instruction set.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/tensor_view.h"

namespace terrace::kernels::cpu {

struct LayerNormCall {
  TensorView x;
  const float* weight = nullptr;
  const float* bias = nullptr;  // null: none
  TensorView y;
  float* mean = nullptr;
  float* rstd = nullptr;
  float epsilon = 0;
};

struct LayerNormGradCall {
  TensorView dy;
  TensorView x;
  const float* weight = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  TensorView residual;  // absent: none
  TensorView dx;
};

}  // namespace terrace::kernels::cpu
