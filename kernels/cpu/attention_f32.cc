// The attention engine for any CPU: f32 products and softmax through Highway, at the widest vectors
// that the CPU has.
//
// Keys and values are packed once a task as dense f32 rows, zero-padded; queries (and output
// gradients) in panels of 32, transposed, [head_dim, 32]. A piece of the scores is [keys, 32
// queries], in L1. All five products of the backward pass are one micro-kernel: A by broadcast with
// any strides, B and C by vectors.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_f32.cc"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_f32_product-inl.h"
#include "kernels/cpu/attention_f32_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu {
namespace HWY_NAMESPACE {
namespace attention_f32 {
namespace {

// Whether the piece of `keys` keys from `key` and 32 queries from `query` holds pairs that must not
// see each other.
bool NeedsMask(const AttentionProblem& p, int64_t key, int64_t keys, int64_t query) {
  return key + keys - 1 > query + p.offset || key < p.FirstKey(query + kPanel - 1) ||
         key + keys > p.keys;
}

// Calls visit(row, lane offset, mask of the queries that see that key) for each vector of a piece.
template <typename Visit>
HWY_INLINE void ForEachMasked(const AttentionProblem& p, int64_t key, int64_t keys, int64_t query,
                              const Visit& visit) {
  const hn::RebindToSigned<D> di;
  // The position beyond any query, padded ones included; positions count from the first key.
  const int64_t reach = p.attrs.sequence + p.offset + kPanel;
  const int64_t window = p.attrs.window > 0 ? std::min(p.attrs.window, reach) : reach;
  alignas(64) int32_t documents[kPanel] = {};  // the first keys of the queries' documents
  for (int64_t i = 0; i < kPanel && p.starts != nullptr; ++i)
    documents[i] = static_cast<int32_t>(p.DocumentKey(query + i));
  for (int64_t lane = 0; lane < kPanel; lane += Lanes()) {
    const auto queries = hn::Iota(di, static_cast<int32_t>(query + p.offset + lane));
    const auto document = hn::Load(di, documents + lane);
    for (int64_t r = 0; r < keys; ++r) {
      const int64_t row = key + r < p.keys ? key + r : reach;  // nobody sees padding
      const auto first = hn::Set(di, static_cast<int32_t>(row));
      const auto last = hn::Set(di, static_cast<int32_t>(row + window));
      const auto seen = hn::AndNot(hn::Lt(queries, first), hn::Lt(queries, last));
      const auto visible = hn::AndNot(hn::Lt(first, document), seen);
      visit(r * kPanel + lane, hn::RebindMask(kD, visible));
    }
  }
}

// What the terms make of a piece of scores and, where there are any, of the gradients d_p of the
// probabilities of its 32 queries, whose sums with these `delta` has.
void ChangePiece(const AttentionProblem& p, const HeadTerms& terms, int64_t keys, int64_t distance,
                 float* scores, float* d_p, const float* delta) {
  for (int64_t lane = 0; lane < kPanel; lane += kStripQueries) {
    ChangeScores(
        terms, p.attrs.scale,
        {.scores = scores + lane, .stride = kPanel, .keys = keys, .distance = distance + lane},
        {.d_p = d_p == nullptr ? nullptr : d_p + lane,
         .delta = delta == nullptr ? nullptr : delta + lane});
  }
}

void DropPiece(const KeptPairs& kept, float scale, int64_t keys, float* rows) {
  for (int64_t lane = 0; lane < kPanel; lane += kStripQueries) {
    DropPairs(kept, scale,
              {.rows = rows + lane, .stride = kPanel, .keys = keys, .first_query = lane});
  }
}

// Online softmax of one panel of queries (Milakov and Gimelshein 2018, arXiv 1805.02867), in powers
// of two.
struct Panel {
  float* scores;   // [128, 32], becomes probabilities
  float* output;   // [head_dim, 32], not yet divided by `sum`
  float* maximum;  // [32], of the scores times scale * log2(e)
  float* sum;      // [32]
};

void StartPanel(const Panel& panel, int64_t padded, float scale) {
  std::fill_n(panel.output, padded * kPanel, 0.0f);
  std::fill_n(panel.maximum, kPanel, UnseenScore(scale));
  std::fill_n(panel.sum, kPanel, 0.0f);
}

// Goes on where o and lse ended: as if all earlier keys were one, with lse as its score.
void ResumePanel(const AttentionProblem& p, const Panel& panel, const HeadRows& o, const float* lse,
                 int64_t query, int64_t end) {
  const int64_t padded = p.scratch.head_dim;
  float row[256 + kAttentionPad];
  for (int64_t r = 0; r < kPanel; ++r) {
    const bool inside = query + r < end;
    LoadRow(o, inside ? query + r : 0, inside ? p.head_dim : 0, padded, row);
    for (int64_t i = 0; i < padded; ++i) panel.output[i * kPanel + r] = row[i];
    const bool sees = SeesKeys(lse, query + r, end);
    panel.maximum[r] = sees ? lse[query + r] * kLog2E : UnseenScore(p.attrs.scale);
    panel.sum[r] = sees ? 1.0f : 0.0f;
  }
}

void Softmax(const Panel& panel, int64_t keys, int64_t padded, float scale) {
  const V factor = hn::Set(kD, scale * kLog2E);
  for (int64_t lane = 0; lane < kPanel; lane += Lanes()) {
    V top = hn::Load(kD, panel.scores + lane);
    for (int64_t r = 1; r < keys; ++r) {
      top = hn::Max(top, hn::Load(kD, panel.scores + r * kPanel + lane));
    }
    const V before = hn::Load(kD, panel.maximum + lane);
    const V maximum = hn::Max(before, hn::Mul(top, factor));
    const V decay = Exp2(hn::Sub(before, maximum));
    V sum = hn::Mul(hn::Load(kD, panel.sum + lane), decay);
    for (int64_t r = 0; r < keys; ++r) {
      float* at = panel.scores + r * kPanel + lane;
      const V value = Exp2(hn::MulSub(hn::Load(kD, at), factor, maximum));
      hn::Store(value, kD, at);
      sum = hn::Add(sum, value);
    }
    hn::Store(sum, kD, panel.sum + lane);
    hn::Store(maximum, kD, panel.maximum + lane);
    if (hn::AllTrue(kD, hn::Eq(before, maximum))) continue;
    for (int64_t i = 0; i < padded; ++i) {
      float* at = panel.output + i * kPanel + lane;
      hn::Store(hn::Mul(hn::Load(kD, at), decay), kD, at);
    }
  }
}

void FinishPanel(const AttentionProblem& p, const Panel& panel, const HeadRows& out, float* lse,
                 int64_t query, int64_t end) {
  float row[256];
  for (int64_t r = 0; r < kPanel && query + r < end; ++r) {
    if (p.add_queries && p.SeesNone(query + r)) continue;
    const bool sees = panel.sum[r] > 0;
    for (int64_t i = 0; i < p.head_dim; ++i) row[i] = panel.output[i * kPanel + r];
    StoreRow(out, query + r, p.head_dim, sees ? 1.0f / panel.sum[r] : 0.0f, row);
    lse[query + r] = sees ? panel.maximum[r] * kLn2 + std::log(panel.sum[r]) : -INFINITY;
  }
}

void Forward(const AttentionProblem& p, const AttentionOperands& io, const AttentionTask& task,
             Scratch scratch) {
  const int64_t padded = p.scratch.head_dim, sequence = p.attrs.sequence;
  const int64_t base = p.FirstKey(task.first_query) / kPanel * kPanel;
  const int64_t count = std::max<int64_t>(p.EndKey(task.end_query) - base, 0);
  float* keys = scratch.Take<float>(count * padded);
  float* values = scratch.Take<float>(count * padded);
  float* rows = scratch.Take<float>(kPanel * padded);
  const Panel panel{.scores = scratch.Take<float>(kKeys * kPanel),
                    .output = scratch.Take<float>(padded * kPanel),
                    .maximum = scratch.Take<float>(kPanel),
                    .sum = scratch.Take<float>(kPanel)};
  float* queries = scratch.Take<float>(kPanel * padded);
  PackRows(p.KeyRows(io.k, task.sequence_index, task.kv_head), base, count, p.keys, p.head_dim,
           padded, keys);
  PackRows(p.KeyRows(io.v, task.sequence_index, task.kv_head), base, count, p.keys, p.head_dim,
           padded, values);
  const int64_t end_query = std::min(task.end_query, p.EndQuery());
  const DropoutRule rule = RuleOf(p.attrs.terms);
  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t head = task.kv_head * p.group() + g;
    const HeadTerms terms = TermsOfHead(p.attrs.terms, head);
    const HeadRows o = p.QueryRows(io.o, task.sequence_index, head);
    float* lse = p.Lse(io.lse, task.sequence_index, head);
    for (int64_t query = task.first_query; query < end_query; query += kPanel) {
      PackRows(p.QueryRows(io.q, task.sequence_index, head), query, kPanel, sequence, p.head_dim,
               padded, rows);
      TransposePanel(rows, padded, queries);
      if (p.add_queries) {
        ResumePanel(p, panel, o, lse, query, sequence);
      } else {
        StartPanel(panel, padded, p.attrs.scale);
      }
      const int64_t end = p.EndKey(query + kPanel);
      for (int64_t key = p.FirstKey(query) / kPanel * kPanel; key < end; key += kKeys) {
        const int64_t n = std::min(kKeys, end - key);
        Multiply<false>(n, kPanel, padded, keys + (key - base) * padded, padded, 1, queries, kPanel,
                        panel.scores, kPanel);
        if (Changes(terms))
          ChangePiece(p, terms, n, query + p.offset - key, panel.scores, nullptr, nullptr);
        if (NeedsMask(p, key, n, query)) {
          ForEachMasked(p, key, n, query, [&](int64_t at, auto visible) HWY_ATTR {
            const V score = hn::Load(kD, panel.scores + at);
            hn::Store(hn::IfThenElse(visible, score, hn::Set(kD, kMaskedScore)), kD,
                      panel.scores + at);
          });
        }
        Softmax(panel, n, padded, p.attrs.scale);
        if (p.drops()) {
          KeptPairs kept;
          FindKept(rule, p.PlaceOf(task.sequence_index, head, query, key), n, &kept);
          DropPiece(kept, rule.scale, n, panel.scores);
        }
        Multiply<true>(padded, kPanel, n, values + (key - base) * padded, 1, padded, panel.scores,
                       kPanel, panel.output, kPanel);
      }
      FinishPanel(p, panel, o, lse, query, end_query);
    }
  }
}

// One query head of the backward pass: its packed operands and what they are turned into.
struct GradHead {
  float* q;        // [sequence, head_dim]
  float* d_o;      // the same
  float* q_t;      // panels [head_dim, 32]
  float* d_o_t;    // the same
  float* lse;      // [sequence], times log2(e)
  float* delta;    // [sequence], sum over head_dim of d_o * o (Dao 2023, section 3.2)
  float* dq;       // [sequence, head_dim]
  float* p;        // [128 keys, 32 queries], probabilities
  float* ds;       // the same, their gradient, then that of the scores
  const float* k;  // [sequence, head_dim]
  const float* v;
  float* dk;
  float* dv;
  HeadTerms terms = {};
  DropoutRule rule = {};
};

void PackGradHead(const AttentionProblem& p, const AttentionOperands& io, int64_t sequence_index,
                  int64_t head, const GradHead& h) {
  const int64_t padded = p.scratch.head_dim, count = p.scratch.keys, end = p.attrs.sequence;
  const HeadRows out = p.QueryRows(io.o, sequence_index, head);
  PackRows(p.QueryRows(io.q, sequence_index, head), 0, count, end, p.head_dim, padded, h.q);
  PackRows(p.QueryRows(io.d_o, sequence_index, head), 0, count, end, p.head_dim, padded, h.d_o);
  for (int64_t r = 0; r < count; r += kPanel) {
    TransposePanel(h.q + r * padded, padded, h.q_t + r * padded);
    TransposePanel(h.d_o + r * padded, padded, h.d_o_t + r * padded);
  }
  const float* lse = p.Lse(io.lse, sequence_index, head);
  float row[256 + kAttentionPad];
  for (int64_t r = 0; r < count; ++r) {
    h.lse[r] = SeesKeys(lse, r, end) ? lse[r] * kLog2E : 0.0f;
    LoadRow(out, std::min(r, end - 1), p.head_dim, padded, row);
    V sum = hn::Zero(kD);
    for (int64_t i = 0; i < padded; i += Lanes()) {
      sum = hn::MulAdd(hn::LoadU(kD, row + i), hn::Load(kD, h.d_o + r * padded + i), sum);
    }
    h.delta[r] = hn::GetLane(hn::SumOfLanes(kD, sum));
  }
  std::fill_n(h.dq, count * padded, 0.0f);
}

struct GradPlace {
  int64_t sequence_index, head, key, query;
};

// Scores to probabilities, their gradients to those of the scores (before the factor `scale`).
void SoftmaxGrad(const GradHead& h, int64_t query, int64_t keys, float scale) {
  const V factor = hn::Set(kD, scale * kLog2E);
  for (int64_t lane = 0; lane < kPanel; lane += Lanes()) {
    const V lse = hn::Load(kD, h.lse + query + lane);
    const V delta = hn::Load(kD, h.delta + query + lane);
    for (int64_t r = 0; r < keys; ++r) {
      float* p = h.p + r * kPanel + lane;
      float* ds = h.ds + r * kPanel + lane;
      const V probability = Exp2(hn::MulSub(hn::Load(kD, p), factor, lse));
      hn::Store(probability, kD, p);
      hn::Store(hn::Mul(probability, hn::Sub(hn::Load(kD, ds), delta)), kD, ds);
    }
  }
}

// What the piece of `keys` keys from `place.key` and 32 queries from `place.query` of a head adds
// to dq, dk and dv.
void GradPiece(const AttentionProblem& p, const GradHead& h, const GradPlace& place, int64_t keys) {
  const int64_t key = place.key, query = place.query;
  const int64_t padded = p.scratch.head_dim;
  const int64_t k_at = key * padded, q_at = query * padded;
  Multiply<false>(keys, kPanel, padded, h.k + k_at, padded, 1, h.q_t + q_at, kPanel, h.p, kPanel);
  Multiply<false>(keys, kPanel, padded, h.v + k_at, padded, 1, h.d_o_t + q_at, kPanel, h.ds,
                  kPanel);
  KeptPairs kept;
  if (p.drops()) {
    FindKept(h.rule, p.PlaceOf(place.sequence_index, place.head, query, key), keys, &kept);
    DropPiece(kept, h.rule.scale, keys, h.ds);
  }
  if (Changes(h.terms))
    ChangePiece(p, h.terms, keys, query + p.offset - key, h.p, h.ds, h.delta + query);
  if (NeedsMask(p, key, keys, query)) {
    ForEachMasked(p, key, keys, query, [&](int64_t at, auto visible) HWY_ATTR {
      const V score = hn::Load(kD, h.p + at);
      hn::Store(hn::IfThenElse(visible, score, hn::Set(kD, kMaskedScore)), kD, h.p + at);
    });
  }
  SoftmaxGrad(h, query, keys, p.attrs.scale);
  if (p.drops()) DropPiece(kept, h.rule.scale, keys, h.p);
  Multiply<true>(keys, padded, kPanel, h.p, kPanel, 1, h.d_o + q_at, padded, h.dv + k_at, padded);
  Multiply<true>(keys, padded, kPanel, h.ds, kPanel, 1, h.q + q_at, padded, h.dk + k_at, padded);
  Multiply<true>(kPanel, padded, keys, h.ds, 1, kPanel, h.k + k_at, padded, h.dq + q_at, padded);
}

void StoreGrad(const HeadRows& out, const float* values, int64_t rows, int64_t head_dim,
               int64_t padded, float factor, bool add) {
  const auto store = add ? AddRow : StoreRow;
  for (int64_t r = 0; r < rows; ++r) store(out, r, head_dim, factor, values + r * padded);
}

void Backward(const AttentionProblem& p, const AttentionOperands& io, const AttentionTask& task,
              Scratch scratch) {
  const int64_t padded = p.scratch.head_dim, count = p.scratch.keys, end = p.attrs.sequence;
  const int64_t size = count * padded;
  float* k = scratch.Take<float>(size);
  float* v = scratch.Take<float>(size);
  const HeadRows k_rows = p.KeyRows(io.k, task.sequence_index, task.kv_head);
  const HeadRows v_rows = p.KeyRows(io.v, task.sequence_index, task.kv_head);
  PackRows(k_rows, 0, count, end, p.head_dim, padded, k);
  PackRows(v_rows, 0, count, end, p.head_dim, padded, v);
  GradHead h{.q = scratch.Take<float>(size),
             .d_o = scratch.Take<float>(size),
             .q_t = scratch.Take<float>(size),
             .d_o_t = scratch.Take<float>(size),
             .lse = scratch.Take<float>(count),
             .delta = scratch.Take<float>(count),
             .dq = scratch.Take<float>(size),
             .p = scratch.Take<float>(kKeys * kPanel),
             .ds = scratch.Take<float>(kKeys * kPanel),
             .k = k,
             .v = v,
             .dk = scratch.Take<float>(size),
             .dv = scratch.Take<float>(size),
             .rule = RuleOf(p.attrs.terms)};
  std::fill_n(h.dk, size, 0.0f);
  std::fill_n(h.dv, size, 0.0f);
  const float scale = p.attrs.scale;
  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t head = task.kv_head * p.group() + g;
    h.terms = TermsOfHead(p.attrs.terms, head);
    PackGradHead(p, io, task.sequence_index, head, h);
    for (int64_t query = 0; query < end; query += kPanel) {
      const int64_t last = p.EndKey(query + kPanel);
      for (int64_t key = p.FirstKey(query) / kPanel * kPanel; key < last; key += kKeys) {
        GradPiece(p, h, {task.sequence_index, head, key, query}, std::min(kKeys, last - key));
      }
    }
    StoreGrad(p.QueryRows(io.dq, task.sequence_index, head), h.dq, end, p.head_dim, padded, scale,
              p.add_queries);
  }
  const HeadRows dk = p.KeyRows(io.dk, task.sequence_index, task.kv_head);
  const HeadRows dv = p.KeyRows(io.dv, task.sequence_index, task.kv_head);
  StoreGrad(dk, h.dk, end, p.head_dim, padded, scale, p.add_keys);
  StoreGrad(dv, h.dv, end, p.head_dim, padded, 1.0f, p.add_keys);
}

}  // namespace
}  // namespace attention_f32

namespace {

AttentionEngine Engine() {
  return {.forward = attention_f32::Forward, .backward = attention_f32::Backward};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace terrace::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(Engine);

AttentionEngine F32AttentionEngine() { return HWY_DYNAMIC_DISPATCH(Engine)(); }

}  // namespace terrace::kernels::cpu
#endif
