// Scratch of the CUDA kernels: how many bytes an instruction must bring on a GPU, and what lies
// where in them. Host arithmetic alone; the twin of WorkspaceBytes of op.h, which counts for CPU
// ranks.
//
// The numbers depend on shapes and attributes, never on the device, so that a plan holds on all of
// them. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/host_device.h"
#include "kernels/newton_schulz.h"
#include "kernels/op.h"

namespace terrace::kernels::cuda {

inline constexpr int64_t kScratchAlignment = 256;
constexpr int64_t AlignScratch(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// REQUIRES: CheckShapes is empty.
int64_t WorkspaceBytes(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands);

// The type of the operands of products.
DType ArithmeticType(MatmulPrecision precision);

// Handed to cuBLASLt for its split sums: what NVIDIA advises for sm_90.
inline constexpr int64_t kGemmLibraryBytes = int64_t{32} << 20;

// A matrix product: operands whose element type is not that of the arithmetic are converted first,
// and where the library cannot store what the op wants, products of some rows at a time go through
// f32 scratch.
struct GemmSizes {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool converts_a = false, converts_b = false;
  bool stages_product = false;
  MatmulPrecision precision = MatmulPrecision::kF32;
};
struct GemmScratch {
  int64_t a_columns = 0, b_columns = 0;  // of the converted copies, padded to whole 16 bytes
  int64_t a_bytes = 0, b_bytes = 0;
  int64_t product_rows = 0;     // of C at a time
  int64_t product_columns = 0;  // padded likewise
  int64_t product_bytes = 0;
  int64_t bytes = 0;  // all, with the library's
};
GemmScratch GemmScratchSizes(const GemmSizes& sizes);

// The operands of an fp8 product: each is quantised into rows of K neighbours, whatever it was
// stored as, because cuBLASLt multiplies nothing else on Ada and Hopper. Rows and N are padded with
// zeros to whole 16 bytes, which it asks for too.
inline constexpr int64_t kFp8Padding = 16;
constexpr int64_t PadFp8(int64_t size) {
  return (size + kFp8Padding - 1) / kFp8Padding * kFp8Padding;
}
// Magnitudes of an operand that are compared before the last comparison; the factor follows them.
inline constexpr int64_t kFp8Parts = 512;
struct Fp8Scratch {
  int64_t row_bytes = 0;             // of both: K padded
  int64_t a_bytes = 0, b_bytes = 0;  // codes
  int64_t parts_bytes = 0;           // of one operand
  GemmScratch product;               // converts nothing
  int64_t bytes = 0;                 // all
};
Fp8Scratch Fp8ScratchSizes(int64_t m, int64_t n, int64_t k);

// The LM head: one chunk of logits, hidden and weight as its arithmetic wants them, a double a row.
struct LmHeadScratch {
  LmHeadScratch(int64_t rows, int64_t hidden, int64_t vocab, const LossAttrs& attrs,
                DType hidden_type, DType weight_type);

  DType type;         // of the products' operands
  int64_t chunk = 0;  // rows
  int64_t logits_stride = 0, hidden_stride = 0, weight_stride = 0;
  int64_t logits_bytes = 0;
  int64_t hidden_bytes = 0, weight_bytes = 0;  // 0: used as they are
  int64_t losses_bytes = 0;
  int64_t products_bytes = 0;
  int64_t bytes = 0;
};

// Elements of one block of a sum over a whole tensor.
inline constexpr int64_t kSumBlock = 32768;

// kUpdateMatrix: scratch of sums and products, first, as the library wants the best alignment; a
// number; the matrix and its successor; and the two squares between them.
struct MatrixUpdateScratch {
  MatrixUpdateScratch(int64_t rows, int64_t columns, MatmulPrecision precision);

  NewtonSchulzShape shape;
  int64_t work_bytes = 0;
  int64_t matrix_bytes = 0;
  int64_t square_bytes = 0;
  int64_t bytes = 0;
};

// kUpdateFactored: partial sums of columns, first, where they are looked for; of each row two sums
// of squares; what rows and columns multiply gradients and, of kCame, moments by; the rates.
struct FactoredUpdateScratch {
  FactoredUpdateScratch(int64_t rows, int64_t columns);

  int64_t partial_bytes = 0;
  int64_t sum_bytes = 0;
  int64_t row_bytes = 0;
  int64_t column_bytes = 0;
  int64_t bytes = 0;
};

// Partial sums of columns: the floats from one block of rows to the next.
TERRACE_HOST_DEVICE constexpr int64_t PartialStride(int64_t columns) {
  return (columns + 31) / 32 * 32;
}

}  // namespace terrace::kernels::cuda
