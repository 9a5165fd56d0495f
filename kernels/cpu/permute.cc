// Reorders the dimensions of a tensor. Plain copies: no arithmetic, so no instruction sets.
//
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <variant>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace terrace::kernels::cpu {
namespace {

// `count` elements, `stride` elements apart, to consecutive ones.
template <typename T>
void Collect(const std::byte* from, int64_t count, int64_t stride, std::byte* to) {
  const auto* x = reinterpret_cast<const T*>(from);
  auto* y = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) y[i] = x[i * stride];
}

}  // namespace

Status Permute(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& order = std::get<PermuteAttrs>(attrs).order;
  const TensorView& x = operands[0];
  const TensorView& y = operands[1];
  std::array<int64_t, kMaxDims> x_strides = {};
  int64_t elements = 1;
  for (int d = kMaxDims - 1; d >= 0; --d) {
    x_strides[d] = elements;
    elements *= x.size[d];
  }
  // Of x's elements, along y's dimensions.
  std::array<int64_t, kMaxDims> strides = {};
  for (int d = 0; d < kMaxDims; ++d) strides[d] = x_strides[order[d]];
  const int64_t columns = y.size[3], bytes = SizeOf(x.dtype);
  const int64_t rows = y.size[0] * y.size[1] * y.size[2];
  ParallelFor(rows, columns, context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t c = row % y.size[2], b = row / y.size[2] % y.size[1];
      const int64_t a = row / (y.size[2] * y.size[1]);
      const int64_t at = a * strides[0] + b * strides[1] + c * strides[2];
      const std::byte* from = x.as<const std::byte>() + at * bytes;
      std::byte* to = y.as<std::byte>() + row * columns * bytes;
      if (strides[3] == 1) {
        std::memcpy(to, from, columns * bytes);
      } else if (bytes == 4) {
        Collect<uint32_t>(from, columns, strides[3], to);
      } else {
        Collect<uint16_t>(from, columns, strides[3], to);
      }
    }
  });
  return {};
}

}  // namespace terrace::kernels::cpu
