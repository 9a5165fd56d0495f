// kAttentionCached: puts the keys and values of new tokens where those of the earlier ones lie, and
// lets the queries look at both. A few new tokens are computed one by one (DecodeAttention), more
// of them by an engine (attention.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace terrace::kernels::cpu {
namespace {

constexpr int kOperands = 7;

// New tokens of one sequence.
struct Span {
  int64_t position = 0;  // of the first
  int64_t count = 0;
};

// The op's operands in plain numbers.
struct Cached {
  Cached(const AttentionAttrs& attributes, std::span<const TensorView> operands)
      : attrs(attributes),
        q(operands[0]),
        k(operands[1]),
        v(operands[2]),
        keys(RowsOf(operands[3])),
        values(RowsOf(operands[4])),
        o(operands[6]),
        spans(operands[5].as<const int32_t>()),
        batch(operands[3].size[0]),
        kept_rows(operands[3].size[1]) {}

  // [batch,max_length,kv_heads,d] as [batch * max_length,kv_heads,d].
  static TensorView RowsOf(const TensorView& kept) {
    TensorView rows = kept;
    rows.dims = 3;
    rows.size = {kept.size[0] * kept.size[1], kept.size[2], kept.size[3]};
    rows.row_stride = rows.size[1] * rows.size[2];
    return rows;
  }
  Span SpanOf(int64_t sequence) const { return {spans[2 * sequence], spans[2 * sequence + 1]}; }
  int64_t group() const { return q.size[1] / k.size[1]; }
  int64_t head_dim() const { return q.size[2]; }

  const AttentionAttrs& attrs;
  TensorView q, k, v, keys, values, o;
  const int32_t* spans;
  int64_t batch, kept_rows;
};

Status CheckSpans(const Cached& op) {
  for (int64_t b = 0; b < op.batch; ++b) {
    const Span span = op.SpanOf(b);
    const bool fits = span.position >= 0 && span.count >= 0 && span.count <= op.attrs.sequence &&
                      span.position <= op.kept_rows - span.count;
    if (fits) continue;
    return {"attention_cached: sequence " + std::to_string(b) + " has " +
            std::to_string(span.count) + " new tokens from position " +
            std::to_string(span.position) + " on: at most " + std::to_string(op.attrs.sequence) +
            " are new, and " + std::to_string(op.kept_rows) + " are kept"};
  }
  return {};
}

// New keys and values to their places, and zeros to the outputs of padding.
void Keep(const Cached& op, int threads) {
  const int64_t bytes = op.k.RowElements() * SizeOf(op.k.dtype);
  ParallelFor(op.q.rows(), 4 * op.k.RowElements(), threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / op.attrs.sequence, i = row % op.attrs.sequence;
      const Span span = op.SpanOf(b);
      if (i >= span.count) {
        std::memset(Address(op.o, row, 0), 0, op.o.RowElements() * SizeOf(op.o.dtype));
        continue;
      }
      const int64_t to = b * op.kept_rows + span.position + i;
      std::memcpy(Address(op.keys, to, 0), Address(op.k, row, 0), bytes);
      std::memcpy(Address(op.values, to, 0), Address(op.v, row, 0), bytes);
    }
  });
}

HeadRows HeadOf(const TensorView& view, int64_t row, int64_t head) {
  return {.data = Address(view, row, head * view.size[2]),
          .dtype = view.dtype,
          .row_stride = view.row_stride};
}

// Heads of a group beyond this many take their turn later.
constexpr int64_t kHeadsAtOnce = 16;

void DecodeHead(const Cached& op, int64_t sequence, int64_t kv_head, Scratch scratch) {
  const Span span = op.SpanOf(sequence);
  const int64_t first_row = sequence * op.kept_rows;
  for (int64_t i = 0; i < span.count; ++i) {
    const int64_t row = sequence * op.attrs.sequence + i, position = span.position + i;
    const int64_t window = op.attrs.window;
    for (int64_t first = 0; first < op.group(); first += kHeadsAtOnce) {
      const int64_t count = std::min(kHeadsAtOnce, op.group() - first);
      std::array<HeadRows, kHeadsAtOnce> q, o;
      std::array<HeadTerms, kHeadsAtOnce> terms;
      for (int64_t g = 0; g < count; ++g) {
        const int64_t head = kv_head * op.group() + first + g;
        q[g] = HeadOf(op.q, row, head);
        o[g] = HeadOf(op.o, row, head);
        terms[g] = TermsOfHead(op.attrs.terms, head);
      }
      DecodeAttention({.q = {q.data(), static_cast<size_t>(count)},
                       .o = {o.data(), static_cast<size_t>(count)},
                       .keys = HeadOf(op.keys, first_row, kv_head),
                       .values = HeadOf(op.values, first_row, kv_head),
                       .first_key = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1),
                       .end_key = position + 1,
                       .terms = {terms.data(), Changes(terms[0]) ? static_cast<size_t>(count) : 0},
                       .head_dim = op.head_dim(),
                       .scale = op.attrs.scale},
                      scratch);
    }
  }
}

void DecodeAll(const Cached& op, const CachedAttentionScratch& sizes, const Context& context) {
  int64_t longest = 0;
  for (int64_t b = 0; b < op.batch; ++b)
    longest = std::max(longest, op.SpanOf(b).position + op.SpanOf(b).count);
  const int64_t kv_heads = op.k.size[1];
  ParallelFor(op.batch * kv_heads, 2 * longest * op.head_dim(), context.threads,
              [&](int64_t begin, int64_t end) {
                std::byte* scratch = context.workspace + omp_get_thread_num() * sizes.thread_bytes;
                for (int64_t i = begin; i < end; ++i)
                  DecodeHead(op, i / kv_heads, i % kv_heads, Scratch(scratch));
              });
}

// The new tokens of one sequence looking at all that is kept of it.
AttentionProblem ProblemOf(const Cached& op, int64_t sequence) {
  AttentionProblem problem(Op::kAttentionCached, op.attrs, op.attrs.sequence, op.q, op.k);
  const Span span = op.SpanOf(sequence);
  problem.scratch =
      AttentionScratchSizes(Op::kAttentionCached, op.attrs, op.head_dim(), op.kept_rows);
  problem.attrs.sequence = span.count;
  problem.key_rows = op.kept_rows;
  problem.keys = span.position + span.count;
  problem.offset = span.position;
  return problem;
}

void PrefillAll(const AttentionEngine& engine, const Cached& op,
                const CachedAttentionScratch& sizes, const Context& context) {
  AttentionOperands io{.q = op.q, .k = op.keys, .v = op.values, .o = op.o};
  io.lse.data = context.workspace + context.threads * sizes.thread_bytes;
  io.lse.row_stride = op.q.size[1] * op.attrs.sequence;
  const int64_t chunks = (op.attrs.sequence + kAttentionQueryChunk - 1) / kAttentionQueryChunk;
  const int64_t kv_heads = op.k.size[1];
#pragma omp parallel for schedule(dynamic) num_threads(context.threads)
  for (int64_t i = 0; i < op.batch * chunks * kv_heads; ++i) {
    const int64_t b = i / kv_heads / chunks;
    const int64_t first = i / kv_heads % chunks * kAttentionQueryChunk;
    const int64_t count = op.SpanOf(b).count;
    if (first >= count) continue;
    const AttentionTask task{.sequence_index = b,
                             .kv_head = i % kv_heads,
                             .first_query = first,
                             .end_query = std::min(first + kAttentionQueryChunk, count)};
    engine.forward(ProblemOf(op, b), io, task,
                   Scratch(context.workspace + omp_get_thread_num() * sizes.thread_bytes));
  }
}

}  // namespace

Status RunAttentionCached(const AttentionEngine& engine, const AttentionAttrs& attrs,
                          std::span<const TensorView> operands, const Context& context) {
  if (!(attrs.scale > 0)) return {"attention_cached: attribute scale must be positive"};
  const Cached op(attrs, operands);
  if (Status status = CheckSpans(op); !status.ok()) return status;
  std::array<TensorShape, kOperands> shapes;
  std::copy(operands.begin(), operands.end(), shapes.begin());
  const CachedAttentionScratch sizes(attrs, shapes, context.threads);
  if (context.workspace_bytes < sizes.bytes)
    return {"attention_cached: the workspace is smaller than WorkspaceBytes for this thread count"};
  Keep(op, context.threads);
  if (sizes.one_by_one) {
    DecodeAll(op, sizes, context);
  } else {
    PrefillAll(engine, op, sizes, context);
  }
  return {};
}

Status AttentionCached(const OpAttrs& attrs, std::span<const TensorView> operands,
                       const Context& context) {
  const auto& attributes = std::get<AttentionAttrs>(attrs);
  return RunAttentionCached(FindAttentionEngine(attributes.precision, operands[0].dtype),
                            attributes, operands, context);
}

}  // namespace terrace::kernels::cpu
