// The matrix product that the CUDA kernels share: kMatmul and the LM head. C[M,N] = op(A) op(B)
// with the epilogues of op.h.
//
// The product itself is a library's (GemmLibrary: cuBLASLt on a GPU, plain loops in the tests);
// around it are conversions of operands to the type of the arithmetic, and the epilogues that the
// library cannot fuse, on f32 products of some rows at a time. GELU is always our own: c must be
// the GELU of the stored aux to the bit.
//
// Thread-safe: scratch comes from the caller; a GemmLibrary's calls may come from any thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/workspace.h"
#include "kernels/fp8.h"

namespace terrace::kernels::cuda {

struct Matrix {
  void* data = nullptr;  // null: there is none
  DType dtype = DType::kF32;
  int64_t row_stride = 0;  // elements
};

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // a is stored [k,m]
  bool transpose_b = false;  // b is stored [n,k]
  bool accumulate = false;
  Epilogue epilogue = Epilogue::kNone;
  MatmulPrecision precision = MatmulPrecision::kF32;
  Fp8Gradient gradient = Fp8Gradient::kNone;
  Matrix a, b, c;
  const float* bias = nullptr;  // [n] or null
  Matrix residual, aux;
};

// An operand of an fp8 product: its matrix holds codes, a byte each.
struct Fp8Codes {
  Fp8Format format = Fp8Format::kE4M3;
  const float* factor = nullptr;  // of its codes, in device memory; null: the product is not fp8
};

// What the library is asked for: c = op(a) op(b) (+ bias) (+ added).
struct Product {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool tf32 = false;  // f32 operands may be rounded to TF32
  Matrix a, b;        // of one type, f32, bf16 or f16; dtype says nothing in fp8
  // Both or none. K is then a multiple of 16, a is not transposed and b is.
  Fp8Codes a_codes, b_codes;
  Matrix c;  // f32, or of the type of a and b, bf16 in fp8
  const float* bias = nullptr;
  Matrix added;  // of c's type; may be c itself; data null: nothing

  bool fp8() const { return a_codes.factor != nullptr; }
};

// Row-major matrices, f32 accumulation. Bitwise deterministic on one device.
class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;
  // Whether Multiply has an implementation for these types, strides and extras.
  virtual bool Supports(const Product& product) const = 0;
  // `scratch` has kGemmLibraryBytes. REQUIRES: Supports(product).
  virtual Status Multiply(const Product& product, std::byte* scratch,
                          CUstream_st* stream) const = 0;
};

// REQUIRES: `scratch` has GemmScratchSizes(...).bytes for these operands with stages_product.
Status RunGemm(const Gemm& gemm, std::byte* scratch, const Context& context);

// Quantises an operand by its own largest magnitude: `k` elements of each of `lines` lines, each a
// row of `from` or, with `transpose`, a column. Codes go to rows of PadFp8(k) bytes at `codes`,
// zeros behind `k` and in rows up to `padded_lines`; `parts` has kFp8Parts floats and the factor
// behind them.
struct Fp8Quantisation {
  Matrix from;
  bool transpose = false;
  int64_t lines = 0, padded_lines = 0, k = 0;
  Fp8Format format = Fp8Format::kE4M3;
  std::byte* codes = nullptr;
  float* parts = nullptr;
};
Status QuantiseFp8(const Fp8Quantisation& quantisation, const Context& context);

// to = from, element types converted: `rows` x `columns` of each.
Status Convert(const Matrix& from, const Matrix& to, int64_t rows, int64_t columns,
               const Context& context);

}  // namespace terrace::kernels::cuda
