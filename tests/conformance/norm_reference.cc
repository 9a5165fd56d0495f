// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/norm_reference.h"

#include <cmath>

#include "tests/conformance/reference_tools.h"

namespace terrace::kernels::conformance {
namespace {

using Shapes = std::span<const TensorShape>;
using Operands = std::span<Values>;

// One row of either norm's gradient: x_hat and rstd given, `centred` for LayerNorm.
struct NormGradRow {
  int64_t d = 0;
  const double* dy = nullptr;
  const double* weight = nullptr;
  double offset = 0;  // added to the weight
  Values x_hat;
  double rstd = 0;
  bool centred = false;
};

void AddNormGradRow(const NormGradRow& row, double* dx, double* dweight) {
  double mean_g = 0, mean_gx = 0;
  for (int64_t i = 0; i < row.d; ++i) {
    const double g = row.dy[i] * (row.weight[i] + row.offset);
    if (row.centred) mean_g += g / row.d;
    mean_gx += g * row.x_hat[i] / row.d;
  }
  for (int64_t i = 0; i < row.d; ++i) {
    const double g = row.dy[i] * (row.weight[i] + row.offset);
    dx[i] += row.rstd * (g - mean_g - row.x_hat[i] * mean_gx);
    dweight[i] += row.dy[i] * row.x_hat[i];
  }
}

}  // namespace

void LayerNormRef(const NormAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[1];
  for (int output : {3, 4, 5}) Begin(&operands[output], shapes[output], false);
  for (int64_t row = 0; row < shapes[0].rows(); ++row) {
    const double* x = &operands[0][row * d];
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < d; ++i) mean += x[i] / d;
    for (int64_t i = 0; i < d; ++i) variance += (x[i] - mean) * (x[i] - mean) / d;
    const double rstd = 1 / std::sqrt(variance + attrs.epsilon);
    operands[4][row] = mean;
    operands[5][row] = rstd;
    for (int64_t i = 0; i < d; ++i) {
      const double bias = shapes[2].absent() ? 0 : operands[2][i];
      operands[3][row * d + i] = (x[i] - mean) * rstd * operands[1][i] + bias;
    }
  }
}

void LayerNormGradRef(const NormAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[1].size[1];
  const bool has_bias = !shapes[8].absent();
  Begin(&operands[6], shapes[6], false);
  if (!shapes[5].absent()) operands[6] = operands[5];
  Begin(&operands[7], shapes[7], attrs.accumulate);
  if (has_bias) Begin(&operands[8], shapes[8], attrs.accumulate);
  for (int64_t n = 0; n < shapes[1].rows(); ++n) {
    NormGradRow row = {.d = d,
                       .dy = &operands[0][n * d],
                       .weight = operands[2].data(),
                       .x_hat = Values(d),
                       .rstd = operands[4][n],
                       .centred = true};
    for (int64_t i = 0; i < d; ++i) {
      row.x_hat[i] = (operands[1][n * d + i] - operands[3][n]) * row.rstd;
    }
    AddNormGradRow(row, &operands[6][n * d], operands[7].data());
    for (int64_t i = 0; has_bias && i < d; ++i) operands[8][i] += row.dy[i];
  }
}

void RmsNormRef(const NormAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[1].rows();
  Begin(&operands[2], shapes[2], false);
  Begin(&operands[3], shapes[3], false);
  for (int64_t n = 0; n < shapes[3].Elements(); ++n) {
    const double* x = &operands[0][n * d];
    double squares = 0;
    for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i] / d;
    const double rstd = 1 / std::sqrt(squares + attrs.epsilon);
    operands[3][n] = rstd;
    const double offset = attrs.unit_offset ? 1 : 0;
    for (int64_t i = 0; i < d; ++i) {
      operands[2][n * d + i] = x[i] * rstd * (operands[1][i] + offset);
    }
  }
}

void RmsNormGradRef(const NormAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[2].rows();
  Begin(&operands[5], shapes[5], false);
  if (!shapes[4].absent()) operands[5] = operands[4];
  Begin(&operands[6], shapes[6], attrs.accumulate);
  for (int64_t n = 0; n < shapes[3].Elements(); ++n) {
    NormGradRow row = {.d = d,
                       .dy = &operands[0][n * d],
                       .weight = operands[2].data(),
                       .offset = attrs.unit_offset ? 1.0 : 0.0,
                       .x_hat = Values(d),
                       .rstd = operands[3][n]};
    for (int64_t i = 0; i < d; ++i) row.x_hat[i] = operands[1][n * d + i] * row.rstd;
    AddNormGradRow(row, &operands[5][n * d], operands[6].data());
  }
}

}  // namespace terrace::kernels::conformance
