// FLOPs, bytes and workspace of each op.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/attention_workspace.h"
#include "kernels/factored_workspace.h"
#include "kernels/gemm_workspace.h"
#include "kernels/newton_schulz.h"
#include "kernels/op_table.h"
#include "kernels/row_blocks.h"
#include "kernels/token_pieces.h"

namespace terrace::kernels {
namespace {

using Operands = std::span<const TensorShape>;

// Operations for one element of operand `operand`, the one that the op's loop runs over. A
// division, a square root and an exponential count as one each.
struct ElementCost {
  int operand = 0;
  int64_t flops = 0;
  int optional = -1;            // an operand whose presence adds `optional_flops` an element
  int64_t optional_flops = 0;
};

// x * sigmoid(x (a + b x^2)) and its derivative.
constexpr int64_t kGeluFlops = 8;
constexpr int64_t kGeluGradFlops = 16;

// A block of Philox, of some 60 operations, has the bits of eight elements.
constexpr int64_t kDropoutFlops = 9;

// c tanh(x / c), as (1 - e) / (1 + e) with an exponential e.
constexpr int64_t kSoftcapFlops = 6;

ElementCost CostOfElement(Op op) {
  switch (op) {
    case Op::kEmbedding: return {.operand = 3, .optional = 2, .optional_flops = 1};
    case Op::kEmbeddingGrad: return {.operand = 1, .flops = 1, .optional = 3, .optional_flops = 1};
    case Op::kLayerNorm: return {.operand = 0, .flops = 7, .optional = 2, .optional_flops = 1};
    case Op::kLayerNormGrad: return {.operand = 0, .flops = 13, .optional = 5, .optional_flops = 1};
    case Op::kRmsNorm: return {.operand = 0, .flops = 4};
    case Op::kRmsNormGrad: return {.operand = 0, .flops = 9, .optional = 4, .optional_flops = 1};
    case Op::kBiasGrad: return {.operand = 0, .flops = 1};
    case Op::kGelu: return {.operand = 0, .flops = kGeluFlops};
    case Op::kGeluGrad: return {.operand = 0, .flops = kGeluGradFlops + 1};
    case Op::kSwiglu: return {.operand = 0, .flops = 5};
    case Op::kSwigluGrad: return {.operand = 0, .flops = 11};
    case Op::kCrossEntropyRows: return {.operand = 0, .flops = 4};
    case Op::kCrossEntropyLoss: return {.operand = 1, .flops = 2};
    case Op::kCrossEntropyGrad: return {.operand = 2, .flops = 3};
    case Op::kPreferenceLoss: return {.operand = 0, .flops = 2};
    case Op::kAddResidual: return {.operand = 0, .optional = 1, .optional_flops = 1};
    case Op::kAdd: return {.operand = 0, .flops = 1};
    case Op::kSquaredNorm: return {.operand = 0, .flops = 2};
    case Op::kSum: return {.operand = 0, .flops = 1};
    case Op::kSumStats: return {.operand = 0, .flops = 1};
    case Op::kGradScale: return {.operand = 0, .flops = 1};
    case Op::kEncodeBlocks: return {.operand = 0, .flops = 2, .optional = 3, .optional_flops = 3};
    case Op::kDecodeBlocks: return {.operand = 2, .flops = 1};
    case Op::kSumBlocks: return {.operand = 2, .flops = 2};  // of a part
    case Op::kScale: return {.operand = 0, .flops = 1};
    case Op::kSoftcap: return {.operand = 0, .flops = kSoftcapFlops};
    case Op::kDropout: return {.operand = 0, .flops = kDropoutFlops};
    default: return {};
  }
}

int64_t MatmulFlops(const MatmulAttrs& attrs, Operands operands) {
  const TensorShape& a = operands[0];
  const TensorShape& c = operands[2];
  const int64_t k = attrs.transpose_a ? a.size[0] : a.size[1];
  int64_t per_element = 2 * k;
  for (int extra : {3, 4}) per_element += operands[extra].absent() ? 0 : 1;
  if (attrs.epilogue == Epilogue::kGelu) per_element += kGeluFlops;
  if (attrs.epilogue == Epilogue::kGeluGrad) per_element += kGeluGradFlops + 1;
  return c.Elements() * per_element;
}

// `products` matrix products with the head dimension for each of `pairs` (query, key) pairs of a
// sequence; the softmax between them is not counted, but the random bits of what it drops are.
int64_t AttentionFlops(Operands operands, int64_t sequence, int64_t pairs, int64_t products,
                       const ScoreTerms& terms) {
  const TensorShape& q = operands[0];
  const int64_t bits = terms.dropout > 0 ? kDropoutFlops : 0;
  return q.size[0] / sequence * q.size[1] * pairs * (2 * q.size[2] * products + bits);
}

int64_t WholeFlops(const AttentionAttrs& attrs, Operands operands, int64_t products) {
  const int64_t pairs = VisiblePairs(attrs.sequence, 0, attrs.window);
  return AttentionFlops(operands, attrs.sequence, pairs, products, attrs.terms);
}

// The new tokens are the last that the cache has room for: no others see more.
int64_t CachedFlops(const AttentionAttrs& attrs, Operands operands) {
  const int64_t kept = operands[3].size[1];
  const int64_t pairs = VisiblePairs(kept, 0, attrs.window) -
                        VisiblePairs(kept - attrs.sequence, 0, attrs.window);
  return AttentionFlops(operands, attrs.sequence, pairs, 2, attrs.terms);
}

int64_t BlockFlops(const AttentionBlockAttrs& attrs, Operands operands, int64_t products) {
  const TokenPieces queries = QueryPieces(attrs), keys = KeyPieces(attrs);
  int64_t pairs = 0;
  for (int i = 0; i < queries.count; ++i) {
    for (int j = 0; j < keys.count; ++j) {
      const int64_t offset = queries.pieces[i].position - keys.pieces[j].position;
      pairs += VisiblePairs(queries.length, offset, attrs.window);
    }
  }
  return AttentionFlops(operands, attrs.sequence, pairs, products, attrs.terms);
}

// `products` matrix products of the size of the logits'; the softmax is not counted.
int64_t LossFlops(Operands operands, int64_t products) {
  return 2 * operands[0].Elements() * operands[1].rows() * products;
}

// Elements of operand `index` that the op can touch: of a looked-up table no more rows than there
// are look-ups, of rotated heads the part that there are angles for.
int64_t TouchedElements(Op op, Operands operands, int index) {
  const TensorShape& shape = operands[index];
  int64_t rows = shape.rows();
  if (op == Op::kEmbedding && index == 1) rows = std::min(rows, operands[0].rows());
  if (op == Op::kEmbeddingGrad && index == 2) rows = std::min(rows, operands[0].rows());
  if (op == Op::kGatherRows && index == 0) rows = std::min(rows, operands[1].rows());
  if (op == Op::kRope && index == 0) return rows * shape.size[1] * operands[1].size[1];
  return rows * shape.RowElements();
}

NewtonSchulzShape ShapeOf(Operands operands) { return {operands[0].size[0], operands[0].size[1]}; }

// Random bits are no floats; a code takes a factor each way.
int64_t UpdateFlops(Op op, const UpdateAttrs& attrs, Operands operands) {
  const OptimizerRow& rule = RowOf(attrs.rule);
  const int codes = op == Op::kUpdateInt8 ? 2 * rule.moments : 0;
  return operands[0].Elements() * (rule.flops + codes);
}

}  // namespace

int64_t Flops(Op op, const OpAttrs& attrs, Operands operands) {
  switch (op) {
    case Op::kMatmul: return MatmulFlops(std::get<MatmulAttrs>(attrs), operands);
    case Op::kAttention: return WholeFlops(std::get<AttentionAttrs>(attrs), operands, 2);
    case Op::kAttentionGrad: return WholeFlops(std::get<AttentionAttrs>(attrs), operands, 5);
    case Op::kAttentionBlock: return BlockFlops(std::get<AttentionBlockAttrs>(attrs), operands, 2);
    case Op::kAttentionBlockGrad:
      return BlockFlops(std::get<AttentionBlockAttrs>(attrs), operands, 5);
    case Op::kAttentionCached: return CachedFlops(std::get<AttentionAttrs>(attrs), operands);
    case Op::kRope: return 3 * TouchedElements(op, operands, 0);
    case Op::kLmHeadLoss: return LossFlops(operands, 1);
    case Op::kLmHeadLossGrad: return LossFlops(operands, operands[5].absent() ? 2 : 3);
    case Op::kUpdate:
    case Op::kUpdateStochastic:
    case Op::kUpdateInt8:
    case Op::kUpdateFactored: return UpdateFlops(op, std::get<UpdateAttrs>(attrs), operands);
    case Op::kUpdateMatrix: {
      const auto& update = std::get<UpdateAttrs>(attrs);
      return UpdateFlops(op, update, operands) + update.iterations * ShapeOf(operands).Flops();
    }
    default: break;
  }
  ElementCost cost = CostOfElement(op);
  if (op == Op::kAddResidual && !operands[2].absent()) cost.flops = 1;
  if (op == Op::kSumBlocks) cost.flops *= operands[0].rows();
  const bool extra = cost.optional >= 0 && !operands[cost.optional].absent();
  return operands[cost.operand].Elements() * (cost.flops + (extra ? cost.optional_flops : 0));
}

int64_t BytesMoved(Op op, const OpAttrs& attrs, Operands operands) {
  int64_t bytes = 0;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    if (operands[i].absent()) continue;
    // Of what is kept only the new rows are written; they are read as k and v.
    const bool kept = op == Op::kAttentionCached;
    const int64_t crossings = OperandAccess(op, attrs, i) == Access::kUpdate && !kept ? 2 : 1;
    bytes += crossings * TouchedElements(op, operands, i) * SizeOf(operands[i].dtype);
  }
  return bytes;
}

int64_t WorkspaceBytes(Op op, const OpAttrs& attrs, Operands operands, int threads) {
  switch (op) {
    case Op::kLayerNormGrad:
      return RowSumBytes(operands[1].rows(), operands[1].size[1], operands[8].absent() ? 1 : 2);
    case Op::kRmsNormGrad: {
      const int64_t columns = operands[2].rows();
      return RowSumBytes(operands[1].Elements() / columns, columns, 1);
    }
    case Op::kBiasGrad: return RowSumBytes(operands[0].rows(), operands[0].size[1], 1);
    case Op::kEmbeddingGrad:  // an order of the rows for a table of 16 bits
      return operands[operands[2].absent() ? 3 : 2].dtype == DType::kF32
                 ? 0
                 : operands[1].rows() * static_cast<int64_t>(sizeof(int32_t));
    case Op::kSquaredNorm:
      return SumBlocks(operands[0].Elements()) * int64_t{sizeof(double)};
    case Op::kMatmul: {
      const auto& matmul = std::get<MatmulAttrs>(attrs);
      const TensorShape& a = operands[0];
      const TensorShape& c = operands[2];
      const int64_t k = matmul.transpose_a ? a.size[0] : a.size[1];
      if (matmul.precision == MatmulPrecision::kFP8) {
        return Fp8GemmScratch(c.size[0], c.size[1], k, threads).bytes();
      }
      return GemmWorkspaceBytes(c.size[0], c.size[1], k, matmul.precision, threads);
    }
    case Op::kAttention:
    case Op::kAttentionGrad:
    case Op::kAttentionBlock:
    case Op::kAttentionBlockGrad:
    case Op::kAttentionCached:
      return AttentionWorkspaceBytes(op, attrs, operands, threads);
    case Op::kLmHeadLoss:
    case Op::kLmHeadLossGrad: {
      const auto& loss = std::get<LossAttrs>(attrs);
      const TensorShape& hidden = operands[0];
      return LmHeadWorkspaceBytes(hidden.size[0], hidden.size[1], operands[1].size[0],
                                  loss.chunk_rows, op == Op::kLmHeadLossGrad, hidden.dtype,
                                  loss.precision, threads);
    }
    case Op::kUpdateMatrix:
      return NewtonSchulzScratch(ShapeOf(operands), std::get<UpdateAttrs>(attrs).precision, threads)
          .bytes;
    case Op::kUpdateFactored:
      return FactoredScratch(operands[0].size[0], operands[0].size[1]).bytes;
    default: return 0;
  }
}

}  // namespace terrace::kernels
