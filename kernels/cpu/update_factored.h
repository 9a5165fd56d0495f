// What the sweeps of kUpdateFactored over a tensor have in common. Internal to its kernel, in a
// header because that file is compiled once for each instruction set.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace terrace::kernels::cpu {

enum class FactoredSweep : uint8_t {
  kSquares,      // of gradients by row and by column, of weights by row
  kStepSquares,  // of steps before they are clipped, by row
  kErrors,       // of kCame: of the distances of steps from their moment, by row and by column
  kStep          // of weights and moments
};

// Rows are dense and follow each other.
struct FactoredCall {
  int64_t columns = 0;
  const void* grad = nullptr;
  DType grad_type = DType::kF32;
  float* param = nullptr;
  void* m = nullptr;  // null where the rule keeps no first moment
  DType m_type = DType::kF32;
  float grad_scale = 0;
  float epsilon = 0, error_epsilon = 0;
  float beta1 = 0, one_minus_beta1 = 0;
  double* row_sums = nullptr;
  double* weight_sums = nullptr;
  float* of_rows = nullptr;  // what gradients are multiplied by
  float* of_columns = nullptr;
  const float* of_error_rows = nullptr;  // what moments are; null where there are no errors
  const float* of_error_columns = nullptr;
  float shrink = 1;      // times the step that the moment follows
  float minus_rate = 0;  // times the step that the weights take
  float decay = 1;       // of weights
};

}  // namespace terrace::kernels::cpu
