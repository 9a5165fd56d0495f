// The attention ops: arguments from operands, the arithmetic that fits them, and for
// kAttentionBlock each piece of queries over the pieces of keys that it sees.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <variant>

#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_packs.cuh"
#include "kernels/token_pieces.h"

namespace terrace::kernels::cuda {
namespace {

constexpr int kDeltaThreads = 128;
constexpr size_t kForwardPlaces = 6, kGradPlaces = 10;  // operands

struct DeltaArguments {
  Operand o, d_o;
  float* delta;
  int64_t batch, heads, rows, head_dim;
  int lanes;  // that share a head of a row: a power of two, at most a warp
  bool wide;
};

// The sum of do * o for each head of each row, a pack at a time.
__global__ void __launch_bounds__(kDeltaThreads) DeltaKernel(DeltaArguments a) {
  const int lane = static_cast<int>(threadIdx.x) % a.lanes, own = threadIdx.x / a.lanes;
  const int at_once = kDeltaThreads / a.lanes;
  const int64_t count = a.batch * a.rows * a.heads;
  // All lanes of a warp stay together, as they add up together.
  for (int64_t base = int64_t{blockIdx.x} * at_once; base < count;
       base += int64_t{gridDim.x} * at_once) {
    const int64_t i = base + own, row = i / a.heads, head = i % a.heads;
    float sum = 0;
    if (i < count) {
      const RowPart part = {row, head * a.head_dim, a.head_dim, a.wide};
      for (int64_t c = lane * kPack; c < a.head_dim; c += a.lanes * kPack) {
        float o[kPack], d_o[kPack];
        LoadRowPack(a.o, part, c, o);
        LoadRowPack(a.d_o, part, c, d_o);
#pragma unroll
        for (int e = 0; e < kPack; ++e) sum += o[e] * d_o[e];
      }
    }
    for (int step = a.lanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (i >= count || lane != 0) continue;
    a.delta[(row / a.rows * a.heads + head) * a.rows + row % a.rows] = sum;
  }
}

// `attrs` of both kinds.
template <typename Attrs>
AttentionShape ShapeOf(const Attrs& attrs, std::span<const TensorView> operands, size_t places) {
  const TensorView& q = operands[0];
  const int64_t sequence = attrs.sequence;
  return {.batch = q.rows() / sequence,
          .heads = q.size[1],
          .kv_heads = operands[1].size[1],
          .head_dim = q.size[2],
          .rows = sequence,
          .length = sequence,
          .query_row = 0,
          .key_row = 0,
          .offset = 0,
          .window = attrs.window,
          .scale = attrs.scale,
          .add_queries = false,
          .add_keys = false,
          .terms = attrs.terms,
          .dropout = RuleOf(attrs.terms),
          .numbers = NumbersOf(operands, places, q.rows() / sequence)};
}

// What matrix instructions multiply.
DType HalfOf(MatmulPrecision precision) {
  return precision == MatmulPrecision::kF16 ? DType::kF16 : DType::kBF16;
}

bool AllowsWideHeads(const TensorView& view, DType type) {
  return view.dtype == type && view.size[2] % kPack == 0 && view.row_stride % kPack == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

AttentionArguments ForwardArguments(const AttentionShape& shape, MatmulPrecision precision,
                                    std::span<const TensorView> operands) {
  constexpr size_t kStarts = 5;
  AttentionArguments a = {};
  a.shape = shape;
  a.shape.starts = StartsOf(operands, kStarts);
  a.q = OperandOf(operands[0]);
  a.k = OperandOf(operands[1]);
  a.v = OperandOf(operands[2]);
  a.o = OperandOf(operands[3]);
  a.lse = operands[4].as<float>();
  const DType type = HalfOf(precision);
  a.wide = AllowsWideHeads(operands[0], type) && AllowsWideHeads(operands[1], type) &&
           AllowsWideHeads(operands[2], type);
  return a;
}

AttentionArguments GradArguments(const AttentionShape& shape, MatmulPrecision precision,
                                 std::span<const TensorView> operands, const Context& context) {
  constexpr size_t kOfForward = 5, kStarts = 9;
  AttentionArguments a = ForwardArguments(shape, precision, operands.first(kOfForward));
  a.shape.starts = StartsOf(operands, kStarts);
  a.d_o = OperandOf(operands[5]);
  a.dq = OperandOf(operands[6]);
  a.dk = OperandOf(operands[7]);
  a.dv = OperandOf(operands[8]);
  a.delta = reinterpret_cast<float*>(context.workspace);
  a.wide = a.wide && AllowsWideHeads(operands[5], HalfOf(precision));
  return a;
}

AttentionPath PathOf(MatmulPrecision precision, const AttentionArguments& a,
                     const Context& context) {
  int64_t longest = 0;
  for (const Operand& operand : {a.q, a.k, a.v, a.d_o}) {
    longest = std::max(longest, a.shape.rows * operand.row_stride * int64_t{sizeof(BF16)});
  }
  return ChooseAttention({.precision = precision,
                          .head_dim = a.shape.head_dim,
                          .scale = a.shape.scale,
                          .documents = a.shape.starts != nullptr,
                          .terms = HasTerms(a.shape.terms),
                          .wide = a.wide,
                          .longest_stride_bytes = longest,
                          .wgmma = context.wgmma_attention});
}

Status Forward(MatmulPrecision precision, const AttentionArguments& a, const Context& context) {
  switch (PathOf(precision, a, context)) {
    case AttentionPath::kWgmma:
      return precision == MatmulPrecision::kF16 ? AttentionWgmmaF16(a, context)
                                                : AttentionWgmma(a, context);
    case AttentionPath::kMma:
      return precision == MatmulPrecision::kF16 ? AttentionMmaF16(a, context)
                                                : AttentionMma(a, context);
    case AttentionPath::kF32:
      break;
  }
  return AttentionF32(a, context);
}

Status Backward(MatmulPrecision precision, const AttentionArguments& a, const Context& context) {
  switch (PathOf(precision, a, context)) {
    case AttentionPath::kWgmma: {
      const bool f16 = precision == MatmulPrecision::kF16;
      const Status status =
          f16 ? AttentionQueryGradWgmmaF16(a, context) : AttentionQueryGradWgmma(a, context);
      if (!status.ok()) return status;
      return f16 ? AttentionKeyGradWgmmaF16(a, context) : AttentionKeyGradWgmma(a, context);
    }
    case AttentionPath::kMma:
      return precision == MatmulPrecision::kF16 ? AttentionGradMmaF16(a, context)
                                                : AttentionGradMma(a, context);
    case AttentionPath::kF32:
      break;
  }
  return AttentionGradF32(a, context);
}

bool StartsWide(const Operand& operand) {
  return reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
         operand.row_stride * (operand.bf16 || operand.f16 ? 2 : 4) % 16 == 0;
}

Status Delta(const AttentionArguments& a, const Context& context) {
  const AttentionShape& s = a.shape;
  int lanes = 1;
  while (lanes < kWarp && lanes * kPack < s.head_dim) lanes *= 2;
  const bool wide = s.head_dim % kPack == 0 && StartsWide(a.o) && StartsWide(a.d_o);
  const DeltaArguments arguments = {a.o,    a.d_o,      a.delta, s.batch, s.heads,
                                    s.rows, s.head_dim, lanes,   wide};
  const int64_t heads = s.batch * s.rows * s.heads;
  const LaunchShape shape = {.grid_x = std::min(DivideUp(heads, kDeltaThreads / lanes), kMaxGridX),
                             .threads = kDeltaThreads};
  return Launch("attention_grad", DeltaKernel, shape, context, arguments);
}

// The pairs of pieces of one block op.
class Pairs {
 public:
  Pairs(const AttentionBlockAttrs& attrs, const AttentionShape& whole)
      : whole_(whole), queries_(QueryPieces(attrs)), keys_(KeyPieces(attrs)) {}

  int query_pieces() const { return queries_.count; }
  int key_pieces() const { return keys_.count; }
  AttentionShape At(int query_piece, int key_piece) const {
    AttentionShape pair = whole_;
    pair.length = queries_.length;
    pair.query_row = queries_.pieces[query_piece].row;
    pair.key_row = keys_.pieces[key_piece].row;
    pair.key_position = keys_.pieces[key_piece].position;
    pair.offset = queries_.pieces[query_piece].position - keys_.pieces[key_piece].position;
    return pair;
  }

 private:
  const AttentionShape whole_;
  const TokenPieces queries_, keys_;
};

bool SeesAnything(const AttentionShape& pair) {
  return VisiblePairs(pair.length, pair.offset, pair.window) > 0;
}

// A piece of queries over all pieces of keys. Where it sees none and nothing is added to, one pair
// still runs: it writes what no key leaves.
Status ForwardPiece(const Pairs& pairs, int query_piece, const AttentionBlockAttrs& attrs,
                    AttentionArguments a, const Context& context) {
  bool written = attrs.accumulate;
  for (int key_piece = 0; key_piece < pairs.key_pieces(); ++key_piece) {
    a.shape = pairs.At(query_piece, key_piece);
    const bool last_chance = key_piece + 1 == pairs.key_pieces() && !written;
    if (!SeesAnything(a.shape) && !last_chance) continue;
    a.shape.add_queries = written;
    Status status = Forward(attrs.precision, a, context);
    if (!status.ok()) return status;
    written = true;
  }
  return {};
}

// All pairs, one after another; then zeros for the pieces that nobody saw and nothing is added to.
Status BackwardPairs(const Pairs& pairs, const AttentionBlockAttrs& attrs, AttentionArguments a,
                     const Context& context) {
  bool queries_written[2] = {attrs.accumulate, attrs.accumulate};
  bool keys_written[2] = {attrs.accumulate_keys, attrs.accumulate_keys};
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < pairs.query_pieces(); ++i) {
      for (int j = 0; j < pairs.key_pieces(); ++j) {
        a.shape = pairs.At(i, j);
        const bool fills = round == 1 && (!queries_written[i] || !keys_written[j]);
        if (round == 0 ? !SeesAnything(a.shape) : !fills) continue;
        // A pair that sees nothing adds zeros to what has been written.
        a.shape.add_queries = queries_written[i];
        a.shape.add_keys = keys_written[j];
        Status status = Backward(attrs.precision, a, context);
        if (!status.ok()) return status;
        queries_written[i] = keys_written[j] = true;
      }
    }
  }
  return {};
}

}  // namespace

Status Attention(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const auto& attention = std::get<AttentionAttrs>(attrs);
  const AttentionShape shape = ShapeOf(attention, operands, kForwardPlaces);
  return Forward(attention.precision, ForwardArguments(shape, attention.precision, operands),
                 context);
}

Status AttentionGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const auto& attention = std::get<AttentionAttrs>(attrs);
  const AttentionShape shape = ShapeOf(attention, operands, kGradPlaces);
  const AttentionArguments a = GradArguments(shape, attention.precision, operands, context);
  Status status = Delta(a, context);
  return status.ok() ? Backward(attention.precision, a, context) : status;
}

Status AttentionBlock(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context) {
  const auto& block = std::get<AttentionBlockAttrs>(attrs);
  const AttentionShape shape = ShapeOf(block, operands, kForwardPlaces);
  const AttentionArguments a = ForwardArguments(shape, block.precision, operands);
  const Pairs pairs(block, a.shape);
  Status status;
  for (int i = 0; i < pairs.query_pieces() && status.ok(); ++i) {
    status = ForwardPiece(pairs, i, block, a, context);
  }
  return status;
}

Status AttentionBlockGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                          const Context& context) {
  const auto& block = std::get<AttentionBlockAttrs>(attrs);
  const AttentionShape shape = ShapeOf(block, operands, kGradPlaces);
  const AttentionArguments a = GradArguments(shape, block.precision, operands, context);
  Status status = Delta(a, context);
  return status.ok() ? BackwardPairs(Pairs(block, a.shape), block, a, context) : status;
}

}  // namespace terrace::kernels::cuda
