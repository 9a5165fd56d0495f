// What the references of several ops share. Internal to tests/conformance. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

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

// A logit as the loss takes it, and its derivative where it is `capped`; without a cap as it is.
inline double CappedRef(double softcap, double logit) {
  return softcap > 0 ? softcap * std::tanh(logit / softcap) : logit;
}
inline double CappedSlopeRef(double softcap, double capped) {
  return softcap > 0 ? 1 - capped / softcap * (capped / softcap) : 1;
}

}  // namespace terrace::kernels::conformance
