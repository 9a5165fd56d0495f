// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/workspace.h"

#include "kernels/cuda/launch_shape.h"

namespace terrace::kernels::cuda {
namespace {

// Enough rows at a time for the library to be fast, few enough to stay in a large cache. In whole
// tiles of it, which also lets every part of a transposed operand start where the whole one could.
constexpr int64_t kProductBytes = int64_t{64} << 20;
constexpr int64_t kProductTile = 128;

int64_t PadColumns(int64_t columns, DType dtype) {
  const int64_t whole = 16 / SizeOf(dtype);
  return DivideUp(columns, whole) * whole;
}

int64_t MatmulBytes(const MatmulAttrs& attrs, std::span<const TensorShape> operands) {
  const DType type = ArithmeticType(attrs.precision);
  const TensorShape& a = operands[0];
  const TensorShape& c = operands[2];
  if (attrs.precision == MatmulPrecision::kFP8) {
    return Fp8ScratchSizes(c.size[0], c.size[1], attrs.transpose_a ? a.size[0] : a.size[1]).bytes;
  }
  return GemmScratchSizes({.m = c.size[0],
                           .n = c.size[1],
                           .k = attrs.transpose_a ? a.size[0] : a.size[1],
                           .transpose_a = attrs.transpose_a,
                           .transpose_b = attrs.transpose_b,
                           .converts_a = a.dtype != type,
                           .converts_b = operands[1].dtype != type,
                           .stages_product = true,
                           .precision = attrs.precision})
      .bytes;
}

// The row sums of dO and O that the gradient of attention needs.
int64_t AttentionGradBytes(std::span<const TensorShape> operands) {
  const TensorShape& lse = operands[4];
  return AlignScratch(lse.Elements() * int64_t{sizeof(float)});
}

int64_t ColumnSumBytes(int64_t rows, int64_t columns, int64_t vectors) {
  return CutRows(rows).blocks * PartialStride(columns) * vectors * int64_t{sizeof(float)};
}

}  // namespace

DType ArithmeticType(MatmulPrecision precision) {
  if (precision == MatmulPrecision::kF16) return DType::kF16;
  return precision == MatmulPrecision::kBF16 ? DType::kBF16 : DType::kF32;
}

GemmScratch GemmScratchSizes(const GemmSizes& s) {
  const DType type = ArithmeticType(s.precision);
  GemmScratch scratch;
  scratch.a_columns = PadColumns(s.transpose_a ? s.m : s.k, type);
  scratch.b_columns = PadColumns(s.transpose_b ? s.k : s.n, type);
  if (s.converts_a) {
    scratch.a_bytes = AlignScratch((s.transpose_a ? s.k : s.m) * scratch.a_columns * SizeOf(type));
  }
  if (s.converts_b) {
    scratch.b_bytes = AlignScratch((s.transpose_b ? s.n : s.k) * scratch.b_columns * SizeOf(type));
  }
  if (s.stages_product) {
    scratch.product_columns = PadColumns(s.n, DType::kF32);
    const int64_t row_bytes = scratch.product_columns * int64_t{sizeof(float)};
    const int64_t tiles = std::max<int64_t>(kProductBytes / row_bytes / kProductTile, 1);
    scratch.product_rows = std::min(s.m, tiles * kProductTile);
    scratch.product_bytes = AlignScratch(scratch.product_rows * row_bytes);
  }
  scratch.bytes = scratch.a_bytes + scratch.b_bytes + scratch.product_bytes + kGemmLibraryBytes;
  return scratch;
}

Fp8Scratch Fp8ScratchSizes(int64_t m, int64_t n, int64_t k) {
  Fp8Scratch scratch;
  scratch.row_bytes = PadFp8(k);
  scratch.a_bytes = AlignScratch(m * scratch.row_bytes);
  scratch.b_bytes = AlignScratch(PadFp8(n) * scratch.row_bytes);
  scratch.parts_bytes = AlignScratch((kFp8Parts + 1) * int64_t{sizeof(float)});
  scratch.product = GemmScratchSizes({.m = m, .n = PadFp8(n), .k = k, .stages_product = true});
  scratch.bytes =
      scratch.a_bytes + scratch.b_bytes + 2 * scratch.parts_bytes + scratch.product.bytes;
  return scratch;
}

LmHeadScratch::LmHeadScratch(int64_t rows, int64_t hidden, int64_t vocab, const LossAttrs& attrs,
                             DType hidden_type, DType weight_type)
    : type(ArithmeticType(attrs.precision)),
      chunk(std::min(rows, attrs.chunk_rows)),
      logits_stride(PadColumns(vocab, type)),
      hidden_stride(PadColumns(hidden, type)),
      weight_stride(PadColumns(hidden, type)),
      logits_bytes(AlignScratch(chunk * logits_stride * SizeOf(type))),
      hidden_bytes(hidden_type == type ? 0 : AlignScratch(chunk * hidden_stride * SizeOf(type))),
      weight_bytes(weight_type == type ? 0 : AlignScratch(vocab * weight_stride * SizeOf(type))),
      losses_bytes(AlignScratch(rows * int64_t{sizeof(double)})) {
  // Logits, the gradient of hidden, that of weight: operands are of the arithmetic's type already.
  const auto product = [&](int64_t m, int64_t n, int64_t k) {
    const GemmSizes sizes{
        .m = m, .n = n, .k = k, .stages_product = true, .precision = attrs.precision};
    return GemmScratchSizes(sizes).bytes;
  };
  products_bytes = std::max({product(chunk, vocab, hidden), product(chunk, hidden, vocab),
                             product(vocab, hidden, chunk)});
  bytes = logits_bytes + hidden_bytes + weight_bytes + losses_bytes + products_bytes;
}

MatrixUpdateScratch::MatrixUpdateScratch(int64_t rows, int64_t columns, MatmulPrecision precision)
    : shape{rows, columns},
      matrix_bytes(AlignScratch(rows * columns * int64_t{sizeof(float)})),
      square_bytes(AlignScratch(shape.side() * shape.side() * int64_t{sizeof(float)})) {
  const bool converts = ArithmeticType(precision) != DType::kF32;
  const auto product = [&](int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b) {
    return GemmScratchSizes({.m = m,
                             .n = n,
                             .k = k,
                             .transpose_a = transpose_a,
                             .transpose_b = transpose_b,
                             .converts_a = converts,
                             .converts_b = converts,
                             .stages_product = true,
                             .precision = precision})
        .bytes;
  };
  const int64_t side = shape.side();
  const bool left = shape.from_left();
  work_bytes = std::max({DivideUp(rows * columns, kSumBlock) * int64_t{sizeof(double)},
                         product(side, side, shape.longer(), !left, left),
                         product(side, side, side, false, false),
                         product(rows, columns, side, false, false)});
  work_bytes = AlignScratch(work_bytes);
  bytes = work_bytes + kScratchAlignment + 2 * matrix_bytes + 2 * square_bytes;
}

FactoredUpdateScratch::FactoredUpdateScratch(int64_t rows, int64_t columns)
    : partial_bytes(AlignScratch(ColumnSumBytes(rows, columns, 1))),
      sum_bytes(AlignScratch(rows * int64_t{sizeof(double)})),
      row_bytes(AlignScratch(rows * int64_t{sizeof(float)})),
      column_bytes(AlignScratch(columns * int64_t{sizeof(float)})),
      bytes(partial_bytes + 2 * sum_bytes + 2 * row_bytes + 2 * column_bytes + kScratchAlignment) {}

int64_t WorkspaceBytes(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands) {
  switch (op) {
    case Op::kLayerNormGrad:
      return ColumnSumBytes(operands[1].rows(), operands[1].size[1], operands[8].absent() ? 1 : 2);
    case Op::kRmsNormGrad: {
      const int64_t columns = operands[2].rows();
      return ColumnSumBytes(operands[1].Elements() / columns, columns, 1);
    }
    case Op::kBiasGrad:
      return ColumnSumBytes(operands[0].rows(), operands[0].size[1], 1);
    case Op::kSquaredNorm:
      return DivideUp(operands[0].Elements(), kSumBlock) * int64_t{sizeof(double)};
    case Op::kMatmul:
      return MatmulBytes(std::get<MatmulAttrs>(attrs), operands);
    case Op::kAttentionGrad:
    case Op::kAttentionBlockGrad:
      return AttentionGradBytes(operands);
    case Op::kLmHeadLoss:
    case Op::kLmHeadLossGrad:
      return LmHeadScratch(operands[0].size[0], operands[0].size[1], operands[1].size[0],
                           std::get<LossAttrs>(attrs), operands[0].dtype, operands[1].dtype)
          .bytes;
    case Op::kUpdateMatrix:
      return MatrixUpdateScratch(operands[0].size[0], operands[0].size[1],
                                 std::get<UpdateAttrs>(attrs).precision)
          .bytes;
    case Op::kUpdateFactored:
      return FactoredUpdateScratch(operands[0].size[0], operands[0].size[1]).bytes;
    default:
      return 0;
  }
}

}  // namespace terrace::kernels::cuda
