// Stands for cuBLASLt where kernels run on the host: plain loops. What it says that it supports can
// be narrowed, so that the paths around the library are all taken. What would end in a trap on a
// GPU is refused: a bias that starts at no whole 16 bytes. TF32 operands are cut, which is the
// larger of the errors that hardware may make of them. Of fp8 products it takes what cuBLASLt takes
// on Ada and Hopper, and no more.
//
// Thread-safe: no state after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/f16.h"
#include "kernels/cuda/gemm.h"

namespace terrace::kernels::cuda {

class PlainGemms final : public GemmLibrary {
 public:
  explicit PlainGemms(bool fuses) : fuses_(fuses) {}

  bool Supports(const Product& product) const override {
    if (product.fp8() && !TakesFp8(product)) return false;
    return fuses_ || (product.bias == nullptr && product.added.data == nullptr &&
                      product.c.dtype == DType::kF32);
  }

  Status Multiply(const Product& p, std::byte*, CUstream_st*) const override {
    if (!Supports(p)) return {"a product that is not supported"};
    if (reinterpret_cast<uintptr_t>(p.bias) % 16 != 0) return {"a bias that is not aligned"};
    if (p.a.dtype != p.b.dtype) return {"a product of two types"};
    if (!p.fp8() && p.a.dtype == DType::kF32 && p.c.dtype != DType::kF32)
      return {"f32 products are f32"};
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          sum += p.fp8() ? Code(p.a, p.a_codes, i, k) * Code(p.b, p.b_codes, j, k)
                         : Read(p.tf32, p.transpose_a ? At(p.a, k, i) : At(p.a, i, k)) *
                               Read(p.tf32, p.transpose_b ? At(p.b, j, k) : At(p.b, k, j));
        }
        if (p.fp8()) sum *= *p.a_codes.factor * *p.b_codes.factor;
        if (p.added.data != nullptr) sum += At(p.added, i, j);
        if (p.bias != nullptr) sum += p.bias[j];
        Set(p.c, i, j, sum);
      }
    }
    return {};
  }

 private:
  // Of an f32 number a tensor core reads the upper 10 bits of the fraction.
  static float Read(bool tf32, float value) {
    constexpr uint32_t kUpper = ~((uint32_t{1} << 13) - 1);
    return tf32 ? std::bit_cast<float>(std::bit_cast<uint32_t>(value) & kUpper) : value;
  }
  // Both K-contiguous, whole 16 bytes, not both E5M2, no f32 bias.
  static bool TakesFp8(const Product& p) {
    const auto whole = [](const Matrix& m) {
      return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_stride % 16 == 0;
    };
    const bool c = reinterpret_cast<uintptr_t>(p.c.data) % 16 == 0 &&
                   p.c.row_stride * SizeOf(p.c.dtype) % 16 == 0;
    return !p.transpose_a && p.transpose_b && p.b_codes.factor != nullptr && whole(p.a) &&
           whole(p.b) && c && p.k % 16 == 0 && p.n % 16 == 0 && p.bias == nullptr &&
           (p.a_codes.format == Fp8Format::kE4M3 || p.b_codes.format == Fp8Format::kE4M3);
  }
  static float Code(const Matrix& m, const Fp8Codes& codes, int64_t row, int64_t column) {
    return FromFp8(static_cast<const uint8_t*>(m.data)[row * m.row_stride + column], codes.format);
  }
  static float At(const Matrix& m, int64_t row, int64_t column) {
    const int64_t at = row * m.row_stride + column;
    if (m.dtype == DType::kF32) return static_cast<const float*>(m.data)[at];
    if (m.dtype == DType::kF16) return ToFloat(static_cast<const F16*>(m.data)[at]);
    return ToFloat(static_cast<const BF16*>(m.data)[at]);
  }
  static void Set(const Matrix& m, int64_t row, int64_t column, float value) {
    const int64_t at = row * m.row_stride + column;
    if (m.dtype == DType::kF32) {
      static_cast<float*>(m.data)[at] = value;
    } else if (m.dtype == DType::kF16) {
      static_cast<F16*>(m.data)[at] = ToF16(value);
    } else {
      static_cast<BF16*>(m.data)[at] = ToBF16(value);
    }
  }

  const bool fuses_;
};

}  // namespace terrace::kernels::cuda
