// What the references of several ops share. Internal to tests/conformance. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

// Sets an output to zeros, unless it is added to.
inline void Begin(Values* values, const TensorShape& shape, bool accumulate) {
  if (!accumulate) values->assign(shape.Elements(), 0.0);
}

inline double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace terrace::kernels::conformance
