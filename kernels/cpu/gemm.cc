// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace terrace::kernels::cpu {
namespace {

float ToBF16AndBack(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (!std::isnan(value)) bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

float Load(const Matrix& matrix, int64_t row, int64_t column) {
  const int64_t index = row * matrix.row_stride + column;
  if (matrix.dtype == DType::kF32) return static_cast<const float*>(matrix.data)[index];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(matrix.data)[index]} << 16);
}

void Store(const Matrix& matrix, int64_t row, int64_t column, float value) {
  const int64_t index = row * matrix.row_stride + column;
  if (matrix.dtype == DType::kF32) {
    static_cast<float*>(matrix.data)[index] = value;
  } else {
    static_cast<uint16_t*>(matrix.data)[index] = std::bit_cast<uint32_t>(ToBF16AndBack(value)) >> 16;
  }
}

float Gelu(float x) {
  return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

float GeluDerivative(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

void StoreRow(const Gemm& gemm, int64_t row, const float* sums) {
  for (int64_t j = 0; j < gemm.n; ++j) {
    float value = sums[j];
    if (gemm.accumulate) value += Load(gemm.c, row, j);
    if (gemm.bias != nullptr) value += gemm.bias[j];
    if (gemm.residual.data != nullptr) value += Load(gemm.residual, row, j);
    if (gemm.epilogue == Epilogue::kGelu) {
      if (gemm.aux.data != nullptr) Store(gemm.aux, row, j, value);
      value = Gelu(value);
    } else if (gemm.epilogue == Epilogue::kGeluGrad) {
      value *= GeluDerivative(Load(gemm.aux, row, j));
    }
    Store(gemm.c, row, j, value);
  }
}

void MultiplyRow(const Gemm& gemm, int64_t row, float* sums) {
  std::fill(sums, sums + gemm.n, 0.0f);
  const bool round = gemm.precision == MatmulPrecision::kBF16;
  for (int64_t p = 0; p < gemm.k; ++p) {
    float a = gemm.transpose_a ? Load(gemm.a, p, row) : Load(gemm.a, row, p);
    if (round) a = ToBF16AndBack(a);
    for (int64_t j = 0; j < gemm.n; ++j) {
      float b = gemm.transpose_b ? Load(gemm.b, j, p) : Load(gemm.b, p, j);
      if (round) b = ToBF16AndBack(b);
      sums[j] += a * b;
    }
  }
}

}  // namespace

Status PrepareGemm(int threads) {
  (void)threads;
  return {};
}

Status RunGemm(const Gemm& gemm, const Context& context) {
  const int64_t row_floats = (gemm.n + 15) / 16 * 16;
  float* sums = reinterpret_cast<float*>(context.workspace);
#pragma omp parallel for num_threads(context.threads) schedule(static)
  for (int t = 0; t < context.threads; ++t) {
    for (int64_t row = t; row < gemm.m; row += context.threads) {
      MultiplyRow(gemm, row, sums + t * row_floats);
      StoreRow(gemm, row, sums + t * row_floats);
    }
  }
  return {};
}

}  // namespace terrace::kernels::cpu
