// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/export/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "worker/checkpoint/convert.h"

namespace terrace {

std::vector<float> Transposed(std::span<const float> matrix, int64_t rows) {
  const int64_t columns = rows == 0 ? 0 : static_cast<int64_t>(matrix.size()) / rows;
  std::vector<float> result(matrix.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column)
      result[column * rows + row] = matrix[row * columns + column];
  }
  return result;
}

void AddRows(const LowRank& product, int64_t first_row, std::span<float> weights) {
  const int64_t columns = product.columns;
  std::vector<float> sum(columns);
  for (int64_t row = 0; row < static_cast<int64_t>(weights.size()) / columns; ++row) {
    const float* left = product.left.data() + (first_row + row) * product.rank;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t r = 0; r < product.rank; ++r) {
      const float factor = left[r];
      const float* right = product.right.data() + r * columns;
      for (int64_t column = 0; column < columns; ++column) sum[column] += factor * right[column];
    }
    float* out = weights.data() + row * columns;
    for (int64_t column = 0; column < columns; ++column) out[column] += product.scale * sum[column];
  }
}

double Rounding::ratio() const {
  return change_squares > 0 ? std::sqrt(rounding_squares / change_squares) : 0;
}

void RoundMerged(std::span<const float> before, std::span<const float> merged, kernels::DType dtype,
                 std::span<std::byte> stored, Rounding* rounding) {
  const auto count = static_cast<int64_t>(merged.size());
  const int64_t bytes = kernels::SizeOf(dtype);
  const auto convert = [&](std::span<const float> from, std::byte* to) {
    ConvertElements(kernels::DType::kF32, std::as_bytes(from).data(), dtype, to, count);
  };
  std::vector<std::byte> without(count * bytes);
  std::vector<float> rounded(count);
  convert(merged, stored.data());
  convert(before, without.data());
  ConvertElements(dtype, stored.data(), kernels::DType::kF32,
                  std::as_writable_bytes(std::span(rounded)).data(), count);
  for (int64_t i = 0; i < count; ++i) {
    const double change = double{merged[i]} - before[i];
    const double error = double{rounded[i]} - merged[i];
    rounding->change_squares += change * change;
    rounding->rounding_squares += error * error;
    const bool is_as_before =
        std::memcmp(stored.data() + i * bytes, without.data() + i * bytes, bytes) == 0;
    rounding->undone += change != 0 && is_as_before ? 1 : 0;
  }
  rounding->weights += count;
}

}  // namespace terrace
