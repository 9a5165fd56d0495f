// kAttentionBlock and kAttentionBlockGrad: each piece of queries over the pieces of keys that it
// sees (attention.h). A rank that holds its tokens in zig-zag has two pieces of each; a pair that
// sees nothing of each other costs nothing.
//
// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/token_pieces.h"

namespace terrace::kernels::cpu {
namespace {

// The pairs of pieces of one op.
class Pairs {
 public:
  Pairs(Op op, const AttentionBlockAttrs& attrs, std::span<const TensorView> operands)
      : base_(op, PieceAttrs(attrs), attrs.sequence, operands[0], operands[1]),
        queries_(QueryPieces(attrs)),
        keys_(KeyPieces(attrs)) {
    const size_t starts = op == Op::kAttentionBlock ? 5 : 9;
    base_.starts = StartsOf(operands, starts);
    base_.numbers = NumbersOf(operands, starts + 1, base_.batch);
  }

  int query_pieces() const { return queries_.count; }
  int key_pieces() const { return keys_.count; }
  const AttentionProblem& base() const { return base_; }

  AttentionProblem At(int query_piece, int key_piece) const {
    AttentionProblem pair = base_;
    pair.query_row = queries_.pieces[query_piece].row;
    pair.key_row = keys_.pieces[key_piece].row;
    pair.key_position = keys_.pieces[key_piece].position;
    pair.offset = queries_.pieces[query_piece].position - keys_.pieces[key_piece].position;
    return pair;
  }

 private:
  AttentionProblem base_;
  const TokenPieces queries_, keys_;
};

bool SeesAnything(const AttentionProblem& pair) {
  return VisiblePairs(pair.attrs.sequence, pair.offset, pair.attrs.window) > 0;
}

void ClearRows(const HeadRows& rows, int64_t first, int64_t end, int64_t width) {
  for (int64_t row = first; row < end; ++row) {
    std::fill_n(static_cast<float*>(rows.data) + row * rows.row_stride, width, 0.0f);
  }
}

// What the task's queries from `first` on leave when they see no key.
void ClearQueries(const AttentionProblem& p, const AttentionOperands& io, const AttentionTask& task,
                  int64_t first) {
  for (int64_t g = 0; g < p.group() && first < task.end_query; ++g) {
    const int64_t head = task.kv_head * p.group() + g;
    ClearRows(p.QueryRows(io.o, task.sequence_index, head), first, task.end_query, p.head_dim);
    float* lse = p.Lse(io.lse, task.sequence_index, head);
    std::fill(lse + first, lse + task.end_query, -INFINITY);
  }
}

// The task's queries of one piece over all keys that they see.
void Forward(const AttentionEngine& engine, const Pairs& pairs, int query_piece, bool accumulate,
             const AttentionOperands& io, const AttentionTask& task, Scratch scratch) {
  bool written = accumulate;
  for (int key_piece = 0; key_piece < pairs.key_pieces(); ++key_piece) {
    AttentionProblem pair = pairs.At(query_piece, key_piece);
    if (!SeesAnything(pair)) continue;
    pair.add_queries = written;
    if (!written) ClearQueries(pair, io, task, std::max(task.first_query, pair.EndQuery()));
    engine.forward(pair.OfSequence(task.sequence_index), io, task, scratch);
    written = true;
  }
  if (!written) ClearQueries(pairs.At(query_piece, 0), io, task, task.first_query);
}

// One kv head of one sequence, all pieces one after another.
void Backward(const AttentionEngine& engine, const Pairs& pairs, const AttentionBlockAttrs& attrs,
              const AttentionOperands& io, const AttentionTask& task, Scratch scratch) {
  bool queries_written[2] = {attrs.accumulate, attrs.accumulate};
  bool keys_written[2] = {attrs.accumulate_keys, attrs.accumulate_keys};
  for (int i = 0; i < pairs.query_pieces(); ++i) {
    for (int j = 0; j < pairs.key_pieces(); ++j) {
      AttentionProblem pair = pairs.At(i, j);
      if (!SeesAnything(pair)) continue;
      pair.add_queries = queries_written[i];
      pair.add_keys = keys_written[j];
      engine.backward(pair.OfSequence(task.sequence_index), io, task, scratch);
      queries_written[i] = keys_written[j] = true;
    }
  }
  const AttentionProblem& p = pairs.base();
  for (int i = 0; i < pairs.query_pieces(); ++i) {
    for (int64_t g = 0; g < p.group() && !queries_written[i]; ++g) {
      ClearRows(pairs.At(i, 0).QueryRows(io.dq, task.sequence_index, task.kv_head * p.group() + g),
                0, task.end_query, p.head_dim);
    }
  }
  for (int j = 0; j < pairs.key_pieces(); ++j) {
    if (keys_written[j]) continue;
    for (const TensorView& view : {io.dk, io.dv}) {
      ClearRows(pairs.At(0, j).KeyRows(view, task.sequence_index, task.kv_head), 0, task.end_query,
                p.head_dim);
    }
  }
}

Status CheckCall(const char* op, const AttentionBlockAttrs& attrs, const AttentionScratch& scratch,
                 const Context& context) {
  if (!(attrs.scale > 0)) return {std::string(op) + ": attribute scale must be positive"};
  if (context.workspace_bytes >= scratch.bytes * context.threads) return {};
  return {std::string(op) + ": the workspace is smaller than WorkspaceBytes for this thread count"};
}

}  // namespace

Status RunAttentionBlock(const AttentionEngine& engine, const AttentionBlockAttrs& attrs,
                         std::span<const TensorView> operands, const Context& context) {
  const Pairs pairs(Op::kAttentionBlock, attrs, operands);
  const AttentionProblem& p = pairs.base();
  Status status = CheckCall("attention_block", attrs, p.scratch, context);
  if (!status.ok()) return status;
  const AttentionOperands io{
      .q = operands[0], .k = operands[1], .v = operands[2], .o = operands[3], .lse = operands[4]};
  const int64_t chunks = (p.attrs.sequence + kAttentionQueryChunk - 1) / kAttentionQueryChunk;
  const int64_t heads = p.batch * p.kv_heads;
  const int64_t tasks = pairs.query_pieces() * chunks * heads;
#pragma omp parallel for schedule(dynamic) num_threads(context.threads)
  for (int64_t i = 0; i < tasks; ++i) {
    // Later queries see more keys: they come first, so that the last task to start is a short one.
    const int64_t chunk = pairs.query_pieces() * chunks - 1 - i / heads;
    const int64_t first = chunk % chunks * kAttentionQueryChunk;
    const AttentionTask task{.sequence_index = i % heads / p.kv_heads,
                             .kv_head = i % heads % p.kv_heads,
                             .first_query = first,
                             .end_query = std::min(first + kAttentionQueryChunk, p.attrs.sequence)};
    Forward(engine, pairs, static_cast<int>(chunk / chunks), attrs.accumulate, io, task,
            Scratch(context.workspace + omp_get_thread_num() * p.scratch.bytes));
  }
  return {};
}

Status RunAttentionBlockGrad(const AttentionEngine& engine, const AttentionBlockAttrs& attrs,
                             std::span<const TensorView> operands, const Context& context) {
  const Pairs pairs(Op::kAttentionBlockGrad, attrs, operands);
  const AttentionProblem& p = pairs.base();
  Status status = CheckCall("attention_block_grad", attrs, p.scratch, context);
  if (!status.ok()) return status;
  const AttentionOperands io{.q = operands[0],
                             .k = operands[1],
                             .v = operands[2],
                             .o = operands[3],
                             .lse = operands[4],
                             .d_o = operands[5],
                             .dq = operands[6],
                             .dk = operands[7],
                             .dv = operands[8]};
  const int64_t tasks = p.batch * p.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(context.threads)
  for (int64_t i = 0; i < tasks; ++i) {
    const AttentionTask task{.sequence_index = i / p.kv_heads,
                             .kv_head = i % p.kv_heads,
                             .first_query = 0,
                             .end_query = p.attrs.sequence};
    Backward(engine, pairs, attrs, io, task,
             Scratch(context.workspace + omp_get_thread_num() * p.scratch.bytes));
  }
  return {};
}

Status AttentionBlock(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context) {
  const auto& block = std::get<AttentionBlockAttrs>(attrs);
  return RunAttentionBlock(FindAttentionEngine(block.precision, operands[0].dtype), block, operands,
                           context);
}

Status AttentionBlockGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                          const Context& context) {
  const auto& block = std::get<AttentionBlockAttrs>(attrs);
  return RunAttentionBlockGrad(FindAttentionEngine(block.precision, operands[0].dtype), block,
                               operands, context);
}

}  // namespace terrace::kernels::cpu
