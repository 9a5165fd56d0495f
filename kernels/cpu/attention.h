// What the attention ops share: the problem in plain numbers, its operands by head, one thread's
// scratch, and the engines that compute one task of it.
//
// A problem is a piece of queries that looks at a piece of keys, `offset` positions before it: the
// whole sequence looking at itself in kAttention, parts of it of the same length in
// kAttentionBlock, all that is kept in kAttentionCached. Rows are counted from the starts of the
// pieces. Where sequences hold several documents, an engine is given the problem of one sequence
// (OfSequence).
//
// attention.cc, attention_grad.cc, attention_block.cc and attention_cached.cc split an op into
// tasks and run them on threads; an engine (attention_f32.cc on any CPU, attention_tiles.h on those
// with bf16 arithmetic) computes one task. No task adds to what another one writes, so results do
// not depend on the number of threads. Engines keep queries in vector lanes (scores are held
// transposed, [keys, queries]): softmax then needs no horizontal reductions.
//
// Masked scores are a large negative number, below the running maximum that a query begins with
// (UnseenScore): their weight is 0, also where no key of a block is seen. Engines leave alone the
// outputs of queries from EndQuery() on. Of several documents a query before it may see no key of
// the piece (SeesNone) as well: its outputs are o = 0 and lse = -inf, or stay as they are where
// they are continued from.
//
// Owns nothing. Thread-compatible: one scratch a thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/attention_workspace.h"
#include "kernels/cpu/attention_terms.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace terrace::kernels::cpu {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
// A masked score: below any other, and times scale * log2(e) still finite.
inline constexpr float kMaskedScore = -1e30f;
// The running maximum with which a query begins that has seen no key yet. It is in the unit of
// maxima, scores times scale * log2(e): far above masked scores, below any other.
constexpr float UnseenScore(float scale) { return kMaskedScore / 2 * scale * kLog2E; }

// The rows that one head of one sequence occupies: row r starts `r * row_stride` elements after
// `data`.
struct HeadRows {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;
};

struct AttentionProblem {
  // Of pieces of attributes.sequence tokens, when q holds `rows` tokens of each sequence.
  AttentionProblem(Op op, const AttentionAttrs& attributes, int64_t rows, const TensorView& q,
                   const TensorView& k);

  AttentionAttrs attrs;  // `sequence` is the number of queries of the piece
  int64_t rows;          // of each sequence in the operands that have a row a query
  int64_t key_rows;      // and in those that have a row a key
  int64_t keys;          // of the piece
  int64_t batch, heads, kv_heads, head_dim;
  AttentionScratch scratch;
  int64_t query_row = 0, key_row = 0;  // of the pieces, among a sequence's rows
  int64_t offset = 0;                  // from the first key's position to the first query's; >= 0
  bool add_queries = false;            // o and lse are continued from, dq is added to
  bool add_keys = false;               // dk and dv are added to
  // By row of the operands, of all sequences; then by query of the piece, of one sequence. Null:
  // each sequence is one document.
  const int32_t* starts = nullptr;
  int64_t key_position = 0;  // of the first key in its sequence
  SequenceNumbers numbers;   // where elements of the softmax are dropped

  int64_t group() const { return heads / kv_heads; }  // query heads that share one kv head
  AttentionProblem OfSequence(int64_t sequence_index) const {
    AttentionProblem one = *this;
    if (starts != nullptr) one.starts = starts + sequence_index * rows + query_row;
    return one;
  }
  // The first key of the document of a query, or of a padded one's last; below 0: an earlier piece
  // has it.
  int64_t DocumentKey(int64_t query) const {
    return starts[std::min(query, attrs.sequence - 1)] - key_position;
  }
  // First key that `query` sees; beyond the piece when it sees none.
  int64_t FirstKey(int64_t query) const {
    const int64_t position = query + offset;
    const int64_t first =
        attrs.window > 0 && position >= attrs.window ? position - attrs.window + 1 : 0;
    return starts == nullptr ? first : std::max(first, DocumentKey(query));
  }
  bool SeesNone(int64_t query) const { return starts != nullptr && DocumentKey(query) >= keys; }
  // The key behind the last one that the queries before `end_query` see, a multiple of the padding.
  int64_t EndKey(int64_t end_query) const {
    const int64_t end = std::min(end_query + offset, keys);
    return (end + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
  }
  // Queries from this one on see no key of the piece.
  int64_t EndQuery() const {
    if (attrs.window == 0) return attrs.sequence;
    return std::clamp<int64_t>(keys + attrs.window - 1 - offset, 0, attrs.sequence);
  }
  HeadRows QueryRows(const TensorView& view, int64_t sequence_index, int64_t head) const {
    return Rows(view, sequence_index * rows + query_row, head);
  }
  HeadRows KeyRows(const TensorView& view, int64_t sequence_index, int64_t kv_head) const {
    return Rows(view, sequence_index * key_rows + key_row, kv_head);
  }
  bool drops() const { return attrs.terms.dropout > 0; }
  DropoutPlace PlaceOf(int64_t sequence_index, int64_t head, int64_t query, int64_t key) const {
    return {.sequence = NumberOf(numbers, sequence_index),
            .head = static_cast<uint32_t>(attrs.terms.first_head + head),
            .query = key_position + offset + query,
            .key = key_position + key};
  }
  // The log-sum-exp of the piece's queries of one head of one sequence.
  float* Lse(const TensorView& lse, int64_t sequence_index, int64_t head) const;

 private:
  HeadRows Rows(const TensorView& view, int64_t row, int64_t head) const;
};

// False for padding and for a query that has seen no key.
inline bool SeesKeys(const float* lse, int64_t query, int64_t end) {
  return query < end && lse[query] != -std::numeric_limits<float>::infinity();
}

// Queries [first_query, end_query) of all query heads of one kv head of one sequence.
struct AttentionTask {
  int64_t sequence_index, kv_head, first_query, end_query;
};

// The operands of all these ops, in op.h's names; those that the forward op lacks are empty.
struct AttentionOperands {
  TensorView q, k, v, o, lse, d_o, dq, dk, dv;
};

// Hands out consecutive 64-byte aligned pieces of one thread's workspace.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : next_(memory) {}
  template <typename T>
  T* Take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }

 private:
  std::byte* next_;
};

using AttentionTaskFunction = void(const AttentionProblem&, const AttentionOperands&,
                                   const AttentionTask&, Scratch);

struct AttentionEngine {
  AttentionTaskFunction* forward;
  // All queries of one kv head of one sequence, whatever the task's query range says.
  AttentionTaskFunction* backward;
};

// The fastest engine of this CPU for products of that precision.
AttentionEngine FindAttentionEngine(MatmulPrecision precision, DType activation);

// Any CPU; multiplies in f32 whatever the precision asked for.
AttentionEngine F32AttentionEngine();

// One query of each head of a group that shares a kv head, over what is kept of one sequence.
struct DecodeTask {
  std::span<const HeadRows> q, o;  // by head; the query is row 0
  HeadRows keys, values;
  int64_t first_key = 0, end_key = 0;  // at least one; the query's own is the last
  std::span<const HeadTerms> terms;    // by head; empty: none
  int64_t head_dim = 0;
  float scale = 0;
};
// In f32, whatever the rows are stored in. `scratch` is of
// CachedAttentionScratch::thread_bytes.
void DecodeAttention(const DecodeTask& task, Scratch scratch);

// The ops on a given engine: operands as in op.h, tasks on context.threads threads.
Status RunAttention(const AttentionEngine& engine, const AttentionAttrs& attrs,
                    std::span<const TensorView> operands, const Context& context);
Status RunAttentionGrad(const AttentionEngine& engine, const AttentionAttrs& attrs,
                        std::span<const TensorView> operands, const Context& context);
Status RunAttentionBlock(const AttentionEngine& engine, const AttentionBlockAttrs& attrs,
                         std::span<const TensorView> operands, const Context& context);
Status RunAttentionCached(const AttentionEngine& engine, const AttentionAttrs& attrs,
                          std::span<const TensorView> operands, const Context& context);
Status RunAttentionBlockGrad(const AttentionEngine& engine, const AttentionBlockAttrs& attrs,
                             std::span<const TensorView> operands, const Context& context);

}  // namespace terrace::kernels::cpu
