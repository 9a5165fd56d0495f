// Token and position embeddings. The gradient has no atomics: the first row with a token collects
// all rows with it, in token order, so that its sums are those of the CPU backend to the bit.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.h"
#include "kernels/token_pieces.h"

namespace terrace::kernels::cuda {
namespace {

// The rows of this rank's part of the table.
struct Table {
  int64_t first, rows;
  bool part;  // the table is sharded: tokens of other shards give zero

  // -1 where another shard holds the token, or it is outside the table.
  __device__ int64_t Row(int32_t token) const {
    const int64_t row = token - first;
    return row >= 0 && row < rows ? row : -1;
  }
  // A part does not say how many rows the whole has: then only negative tokens are wrong.
  __device__ bool IsFault(int32_t token) const { return part ? token < 0 : Row(token) < 0; }
};

Table TableOf(const EmbeddingAttrs& attrs, const TensorView& table) {
  if (attrs.shard_rows == 0) return {0, table.rows(), false};
  return {attrs.shard * attrs.shard_rows, attrs.shard_rows, true};
}

// Counts the position of a row from the start of its document, or of a sequence that is one.
struct RowPositions {
  Positions share;
  const int32_t* starts;  // or null

  // -1 where starts say what none can.
  __device__ int64_t Of(int64_t row) const {
    const int64_t position = share.Of(row);
    if (starts == nullptr) return position;
    return starts[row] >= 0 && starts[row] <= position ? position - starts[row] : -1;
  }
};

struct EmbeddingArguments {
  const int32_t* tokens;
  Operand table;
  Operand positions;  // or none
  Operand x;
  int64_t rows, columns;
  Table shard;
  RowPositions row_positions;
  Fault* faults;
};

__global__ void EmbeddingKernel(EmbeddingArguments a) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int32_t token = a.tokens[row];
    if (threadIdx.x == 0 && a.shard.IsFault(token)) NoteFault(a.faults, Op::kEmbedding, row);
    const int64_t at = a.shard.Row(token);
    const int64_t position = a.positions.data == nullptr ? -1 : a.row_positions.Of(row);
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      float sum = at >= 0 ? a.table.Load(at, c) : 0.0f;
      if (position >= 0) sum += a.positions.Load(position, c);
      a.x.Store(row, c, sum);
    }
  }
}

constexpr int kScanThreads = 256;
constexpr int kScanWarps = kScanThreads / kWarp;
constexpr int kColumnsEach = 4;
constexpr int64_t kScanColumns = int64_t{kScanThreads} * kColumnsEach;

struct EmbeddingGradArguments {
  const int32_t* tokens;
  Operand dx;
  Operand dtable;
  Operand dpositions;  // or none
  int64_t rows, columns;
  Table shard;
  RowPositions row_positions;
  Fault* faults;
};

// Which of the rows [base, base + kScanThreads) below `end` are wanted: a bit each, in order.
template <typename Wanted>
__device__ void FindRows(int64_t base, int64_t end, const Wanted& wanted, uint32_t* found) {
  const int64_t at = base + threadIdx.x;
  const bool same = at < end && wanted(at);
  const uint32_t bits = __ballot_sync(0xffffffffu, same);
  __syncthreads();  // the bits of the call before have been read
  if (threadIdx.x % kWarp == 0) found[threadIdx.x / kWarp] = bits;
  __syncthreads();
}

__device__ void FindToken(const int32_t* tokens, int64_t base, int64_t end, int32_t token,
                          uint32_t* found) {
  FindRows(base, end, [tokens, token](int64_t at) { return tokens[at] == token; }, found);
}

// Adds the columns of dx that a thread has, of the rows that are found from `base` on.
__device__ void AddFound(const EmbeddingGradArguments& a, int64_t base, const uint32_t* found,
                         int64_t first_column, float* sums) {
  for (int w = 0; w < kScanWarps; ++w) {
    for (uint32_t bits = found[w]; bits != 0; bits &= bits - 1) {
      const int64_t from = base + w * kWarp + __ffs(static_cast<int>(bits)) - 1;
#pragma unroll
      for (int i = 0; i < kColumnsEach; ++i) {
        const int64_t c = first_column + i * kScanThreads + threadIdx.x;
        if (c < a.columns) sums[i] += a.dx.Load(from, c);
      }
    }
  }
}

__device__ void LoadSums(const Operand& table, int64_t at, int64_t columns, int64_t first_column,
                         float* sums) {
#pragma unroll
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t c = first_column + i * kScanThreads + threadIdx.x;
    sums[i] = c < columns ? table.Load(at, c) : 0.0f;
  }
}

__device__ void StoreSums(const Operand& table, int64_t at, int64_t columns, int64_t first_column,
                          const float* sums) {
#pragma unroll
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t c = first_column + i * kScanThreads + threadIdx.x;
    if (c < columns) table.Store(at, c, sums[i]);
  }
}

__device__ bool AppearsBefore(const EmbeddingGradArguments& a, int64_t row, uint32_t* found) {
  // The nearest rows first: a frequent token has appeared not long ago.
  for (int64_t end = row; end > 0; end -= kScanThreads) {
    const int64_t base = end > kScanThreads ? end - kScanThreads : 0;
    FindToken(a.tokens, base, end, a.tokens[row], found);
    uint32_t any = 0;
    for (int w = 0; w < kScanWarps; ++w) any |= found[w];
    if (any != 0) return true;
  }
  return false;
}

// One block for each row and piece of columns; those whose token has appeared before do nothing.
__global__ void __launch_bounds__(kScanThreads) TokenGradKernel(EmbeddingGradArguments a) {
  __shared__ uint32_t found[kScanWarps];
  const int64_t first_column = blockIdx.y * kScanColumns;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int32_t token = a.tokens[row];
    if (threadIdx.x == 0 && blockIdx.y == 0 && a.shard.IsFault(token)) {
      NoteFault(a.faults, Op::kEmbeddingGrad, row);
    }
    const int64_t at = a.shard.Row(token);
    if (at < 0 || AppearsBefore(a, row, found)) continue;
    float sums[kColumnsEach];
    LoadSums(a.dtable, at, a.columns, first_column, sums);
    for (int64_t base = row; base < a.rows; base += kScanThreads) {
      FindToken(a.tokens, base, a.rows, token, found);
      AddFound(a, base, found, first_column, sums);
    }
    StoreSums(a.dtable, at, a.columns, first_column, sums);
  }
}

// One block a position that this rank holds: the same place of every sequence, in order.
__global__ void PositionGradKernel(EmbeddingGradArguments a) {
  const int64_t sequence = a.row_positions.share.sequence;
  for (int64_t i = blockIdx.x; i < sequence; i += gridDim.x) {
    if (i >= a.rows) continue;
    const int64_t at = a.row_positions.share.Of(i);
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
      float sum = a.dpositions.Load(at, c);
      for (int64_t row = i; row < a.rows; row += sequence) sum += a.dx.Load(row, c);
      a.dpositions.Store(at, c, sum);
    }
  }
}

// The same where sequences hold several documents: one block for each position and piece of
// columns, and all rows whose place in their document it is, in order. They may be anywhere.
__global__ void __launch_bounds__(kScanThreads)
    DocumentPositionGradKernel(EmbeddingGradArguments a, int64_t positions) {
  __shared__ uint32_t found[kScanWarps];
  const int64_t first_column = blockIdx.y * kScanColumns;
  for (int64_t at = blockIdx.x; at < positions; at += gridDim.x) {
    float sums[kColumnsEach];
    LoadSums(a.dpositions, at, a.columns, first_column, sums);
    for (int64_t base = 0; base < a.rows; base += kScanThreads) {
      FindRows(
          base, a.rows, [&a, at](int64_t row) { return a.row_positions.Of(row) == at; }, found);
      AddFound(a, base, found, first_column, sums);
    }
    StoreSums(a.dpositions, at, a.columns, first_column, sums);
  }
}

}  // namespace

Status Embedding(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const auto& embedding = std::get<EmbeddingAttrs>(attrs);
  const TensorView& positions = operands[2];
  const bool adds_positions = !positions.absent() && embedding.shard == 0;
  const EmbeddingArguments arguments = {
      .tokens = operands[0].as<const int32_t>(),
      .table = OperandOf(operands[1]),
      .positions = adds_positions ? OperandOf(positions) : Operand{},
      .x = OperandOf(operands[3]),
      .rows = operands[0].rows(),
      .columns = operands[1].size[1],
      .shard = TableOf(embedding, operands[1]),
      .row_positions = {PositionsOf(embedding.context, embedding.sequence), StartsOf(operands, 4)},
      .faults = context.faults};
  return Launch("embedding", EmbeddingKernel, RowShape(arguments.rows, arguments.columns), context,
                arguments);
}

Status EmbeddingGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const auto& embedding = std::get<EmbeddingAttrs>(attrs);
  const TensorView& dtable = operands[2];
  const TensorView& dpositions = operands[3];
  const EmbeddingGradArguments arguments = {
      .tokens = operands[0].as<const int32_t>(),
      .dx = OperandOf(operands[1]),
      .dtable = dtable.absent() ? Operand{} : OperandOf(dtable),
      .dpositions = dpositions.absent() ? Operand{} : OperandOf(dpositions),
      .rows = operands[0].rows(),
      .columns = operands[1].size[1],
      .shard = dtable.absent() ? Table{} : TableOf(embedding, dtable),
      .row_positions = {PositionsOf(embedding.context, embedding.sequence), StartsOf(operands, 4)},
      .faults = context.faults};
  const int64_t pieces = DivideUp(arguments.columns, kScanColumns);
  if (pieces > kMaxGridY) return {"embedding_grad: rows of more than 67 M columns"};
  LaunchShape shape = RowShape(arguments.rows, arguments.columns);
  shape.threads = kScanThreads;
  shape.grid_y = pieces;
  Status status;
  if (!dtable.absent())
    status = Launch("embedding_grad", TokenGradKernel, shape, context, arguments);
  if (!status.ok() || dpositions.absent()) return status;
  if (arguments.row_positions.starts != nullptr) {
    // No document is longer than a sequence.
    const int64_t positions = embedding.sequence * embedding.context.ranks;
    LaunchShape of_positions = RowShape(positions, arguments.columns);
    of_positions.threads = kScanThreads;
    of_positions.grid_y = pieces;
    return Launch("embedding_grad", DocumentPositionGradKernel, of_positions, context, arguments,
                  positions);
  }
  return Launch("embedding_grad", PositionGradKernel,
                RowShape(embedding.sequence, arguments.columns), context, arguments);
}

}  // namespace terrace::kernels::cuda
