// What one call of the RMS norm kernels works on. Internal to rms_norm.cc, in a header because that
// file is compiled once for each instruction set.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/tensor_view.h"

namespace terrace::kernels::cpu {

struct RmsNormCall {
  TensorView x;
  const float* weight = nullptr;
  TensorView y;
  float* rstd = nullptr;
  float epsilon = 0;
  float offset = 0;  // added to the weight
};

struct RmsNormGradCall {
  TensorView dy;
  TensorView x;
  const float* weight = nullptr;
  const float* rstd = nullptr;
  TensorView residual;  // absent: none
  TensorView dx;
  float offset = 0;  // added to the weight
};

// Columns of the last dimension, and how many such vectors a view holds: n rows, or n rows of
// heads.
inline int64_t NormColumns(const TensorView& view) { return view.size[view.dims - 1]; }
inline int64_t NormVectors(const TensorView& view) { return view.Elements() / NormColumns(view); }

template <typename T>
T* NormVector(const TensorView& view, int64_t index) {
  const int64_t columns = NormColumns(view);
  const int64_t per_row = view.RowElements() / columns;
  return reinterpret_cast<T*>(Address(view, index / per_row, index % per_row * columns));
}

}  // namespace terrace::kernels::cpu
