// kAttentionCached: first keys and values go to their places, then a block computes one head of one
// new token. Its warps share the keys, each with a softmax of its own; the block puts them
// together.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <variant>

#include "kernels/cuda/attention_terms.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxHeadDim = 256;  // op_rules.cc
constexpr int kLaneElements = kMaxHeadDim / kWarp;

struct CachedArguments {
  Operand q, k, v, keys, values, o;
  const int32_t* spans;  // {position, number} of each sequence's new tokens
  int64_t rows, sequence, kept, heads, kv_heads, head_dim, window;
  float scale;
  ScoreTerms terms;
  Fault* faults;

  // Whether the row is a new token; its place among what is kept goes to `to`.
  __device__ bool Place(int64_t row, int64_t* to) const {
    const int64_t b = row / sequence, i = row % sequence;
    const int64_t position = spans[2 * b], count = spans[2 * b + 1];
    *to = b * kept + position + i;
    return i < count && position >= 0 && position + count <= kept;
  }
};

__global__ void KeepKernel(CachedArguments a) {
  const int64_t columns = a.kv_heads * a.head_dim;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t b = row / a.sequence;
    const int64_t position = a.spans[2 * b], count = a.spans[2 * b + 1];
    const bool bad = position < 0 || count < 0 || count > a.sequence || position + count > a.kept;
    if (bad && threadIdx.x == 0) NoteFault(a.faults, Op::kAttentionCached, row);
    int64_t to = 0;
    if (a.Place(row, &to)) {
      for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
        a.keys.Store(to, c, a.k.Load(row, c));
        a.values.Store(to, c, a.v.Load(row, c));
      }
    }
  }
}

// The softmax of the keys that one warp has seen: their sum and output relative to `maximum`.
struct Softmax {
  float maximum = -INFINITY;
  float sum = 0;
  float output[kLaneElements] = {};

  __device__ float MoveTo(float top) {
    const float factor = maximum == -INFINITY ? 0.0f : expf(maximum - top);
    maximum = top;
    return factor;
  }
};

__device__ float WarpSum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

__global__ void __launch_bounds__(kWarps* kWarp) AttendKernel(CachedArguments a) {
  __shared__ float maxima[kWarps], sums[kWarps], outputs[kWarps][kMaxHeadDim];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t head = blockIdx.y, first_column = head * a.head_dim;
  const HeadTerms terms = TermsOfHead(a.terms, head);
  const int64_t kv_column = head / (a.heads / a.kv_heads) * a.head_dim;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    int64_t to = 0;
    const bool exists = a.Place(row, &to);
    const int64_t kept_from = row / a.sequence * a.kept, position = to - kept_from;
    float query[kLaneElements];
    for (int e = 0; e < kLaneElements; ++e) {
      const int64_t c = lane + int64_t{e} * kWarp;
      query[e] = c < a.head_dim ? a.q.Load(row, first_column + c) * a.scale : 0.0f;
    }
    Softmax seen;
    const int64_t first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    for (int64_t key = first + warp; exists && key <= position; key += kWarps) {
      float score = 0;
      for (int e = 0; e < kLaneElements; ++e) {
        const int64_t c = lane + int64_t{e} * kWarp;
        if (c < a.head_dim) score += query[e] * a.keys.Load(kept_from + key, kv_column + c);
      }
      score = WarpSum(score);
      if (Changes(terms)) score = ChangeScore(terms, score, position - key).score;
      const float decay = seen.MoveTo(fmaxf(seen.maximum, score));
      const float weight = expf(score - seen.maximum);
      seen.sum = seen.sum * decay + weight;
      for (int e = 0; e < kLaneElements; ++e) {
        const int64_t c = lane + int64_t{e} * kWarp;
        const float value = c < a.head_dim ? a.values.Load(kept_from + key, kv_column + c) : 0.0f;
        seen.output[e] = seen.output[e] * decay + weight * value;
      }
    }
    __syncthreads();  // the last row's results have been read
    if (lane == 0) {
      maxima[warp] = seen.maximum;
      sums[warp] = seen.sum;
    }
    for (int e = 0; e < kLaneElements; ++e) outputs[warp][lane + e * kWarp] = seen.output[e];
    __syncthreads();
    float top = -INFINITY;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, maxima[w]);
    for (int64_t c = threadIdx.x; c < a.head_dim; c += blockDim.x) {
      float sum = 0, output = 0;
      for (int w = 0; exists && w < kWarps; ++w) {
        const float factor = maxima[w] == -INFINITY ? 0.0f : expf(maxima[w] - top);
        sum += sums[w] * factor;
        output += outputs[w][c] * factor;
      }
      a.o.Store(row, first_column + c, exists ? output / sum : 0.0f);
    }
  }
}

// [batch,max_length,kv_heads,d] as rows of tokens.
Operand KeptRows(const TensorView& kept) {
  Operand rows = OperandOf(kept);
  rows.row_stride = kept.size[2] * kept.size[3];
  return rows;
}

}  // namespace

Status AttentionCached(const OpAttrs& attrs, std::span<const TensorView> operands,
                       const Context& context) {
  const auto& attention = std::get<AttentionAttrs>(attrs);
  const TensorView& q = operands[0];
  const TensorView& kept = operands[3];
  const CachedArguments arguments = {.q = OperandOf(q),
                                     .k = OperandOf(operands[1]),
                                     .v = OperandOf(operands[2]),
                                     .keys = KeptRows(kept),
                                     .values = KeptRows(operands[4]),
                                     .o = OperandOf(operands[6]),
                                     .spans = operands[5].as<const int32_t>(),
                                     .rows = q.rows(),
                                     .sequence = attention.sequence,
                                     .kept = kept.size[1],
                                     .heads = q.size[1],
                                     .kv_heads = kept.size[2],
                                     .head_dim = q.size[2],
                                     .window = attention.window,
                                     .scale = attention.scale,
                                     .terms = attention.terms,
                                     .faults = context.faults};
  const Status status =
      Launch("attention_cached", KeepKernel,
             RowShape(arguments.rows, arguments.kv_heads * arguments.head_dim), context, arguments);
  if (!status.ok()) return status;
  const LaunchShape shape = {.grid_x = std::min(arguments.rows, kMaxGridX),
                             .grid_y = arguments.heads,
                             .threads = kWarps * kWarp};
  return Launch("attention_cached", AttendKernel, shape, context, arguments);
}

}  // namespace terrace::kernels::cuda
