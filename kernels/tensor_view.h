// What a kernel sees of memory: an address, an element type and a shape. A view owns nothing.
//
// Dimensions are row-major. Dimensions 1.. are dense; dimension 0 may be strided (a column slice of
// a wider matrix, such as Q inside a fused QKV buffer), which is why a view carries row_stride.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace::kernels {

enum class DType : uint8_t { kF32 = 1, kBF16, kF16, kI32, kI64, kU8 };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

// "f32", "bf16", "f16", "i32", "i64", "u8".
std::string_view Name(DType dtype);

inline constexpr int kMaxDims = 4;

// Shape and element type of one operand, without an address: what shape rules, FLOP counts and
// workspace sizes are computed from.
struct TensorShape {
  DType dtype = DType::kF32;
  int dims = 0;                             // 0 means the operand is absent
  std::array<int64_t, kMaxDims> size = {};  // size[0..dims)
  int64_t row_stride = 0;  // elements from one index of dimension 0 to the next; >= RowElements()

  bool absent() const { return dims == 0; }
  int64_t rows() const { return dims == 0 ? 0 : size[0]; }
  int64_t RowElements() const {
    int64_t n = 1;
    for (int d = 1; d < dims; ++d) n *= size[d];
    return n;
  }
  int64_t Elements() const { return rows() * RowElements(); }
  bool dense() const { return row_stride == RowElements(); }
  // Bytes from the first element to one past the last one, gaps between strided rows included.
  int64_t SpanBytes() const {
    return absent() || rows() == 0 ? 0
                                   : ((rows() - 1) * row_stride + RowElements()) * SizeOf(dtype);
  }
  std::string ToString() const;  // "bf16[2048,384]", with "/1152" appended where rows are strided
};

struct TensorView : TensorShape {
  void* data = nullptr;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace terrace::kernels
