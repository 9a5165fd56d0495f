// The backward pass of the attention engines on tiles: products of 32 x 32 pieces, AVX-512
// gradients of the softmax between them.
//
// Scores are held transposed, [keys, queries], with 16 queries in a vector; so is dq, which is
// transposed when it is stored. The layouts are chosen so that probabilities and score gradients
// are ready to be operands (attention_tiles-inl.h) as they leave the registers.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/attention_scores-inl.h"
#include "kernels/cpu/attention_tiles.h"

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,bmi2")
namespace terrace::kernels::cpu {
namespace {

constexpr int64_t kGradBlock = kAttentionGradBlock;

// One query head of the backward pass. Operands cover the whole sequence, `p` to `ds_b` one block
// of 128 x 128.
template <int kParts>
struct GradHead {
  Operand<kParts> k, v, k_t;           // A tiles
  Operand<kParts> q, q_t, d_o, d_o_t;  // B tiles
  Operand<kParts> p, ds;  // A tiles, [keys, queries]: probabilities and the gradients of the scores
  Operand<kParts> ds_b;   // B tiles of the same
  Sums scores, d_p;       // one piece of 32 x 32
  Sums dq_t, dk, dv;      // dq is [head_dim, sequence]
  float* lse;             // times log2(e)
  float* delta;           // sum over head_dim of d_o * o (Dao 2023, section 3.2)
  int64_t sequence_index = 0, head = 0;
  HeadTerms terms = {};
  DropoutRule rule = {};
};

// Row sums of d_o * o, 16 rows at a time.
void Deltas(const HeadRows& o, const HeadRows& d_o, int64_t end, int64_t width, int64_t count,
            float* delta) {
  for (int64_t first = 0; first < count; first += kTile) {
    alignas(64) float partial[kSumElements];
    for (int64_t i = 0; i < kTile; ++i) {
      __m512 sum = _mm512_setzero_ps();
      for (int64_t column = 0; first + i < end && column < width; column += kTile) {
        sum = _mm512_fmadd_ps(LoadColumns(o, first + i, column, width),
                              LoadColumns(d_o, first + i, column, width), sum);
      }
      _mm512_store_ps(partial + i * kTile, sum);
    }
    TransposeTile(partial, partial);
    __m512 sum = _mm512_load_ps(partial);
    for (int64_t i = 1; i < kTile; ++i)
      sum = _mm512_add_ps(sum, _mm512_load_ps(partial + i * kTile));
    _mm512_store_ps(delta + first, sum);
  }
}

// What of the softmax of one piece is dropped has no part in dv, and its gradient is 0.
template <int kParts>
void DropGradients(const GradHead<kParts>& h, const KeptPairs& kept) {
  for (int64_t tile = 0; tile < 2; ++tile) {
    for (int64_t column = 0; column < 2; ++column) {
      DropPairs(kept, h.rule.scale,
                {.rows = h.d_p.At(tile, column),
                 .stride = kTile,
                 .keys = kTile,
                 .first_query = column * kTile,
                 .first_key = tile * kTile});
    }
  }
}

// Probabilities and score gradients of one piece: from the f32 tiles to operands, two keys by 32
// queries at a time. `kept` is read with kDrops.
template <int kParts, bool kDrops>
void SoftmaxGradPiece(const GradHead<kParts>& h, int64_t query, int64_t key_unit,
                      int64_t query_unit, float scale, const KeptPairs& kept) {
  const __m512 factor = _mm512_set1_ps(scale * kLog2E);
  const __m512 lse[2] = {_mm512_load_ps(h.lse + query), _mm512_load_ps(h.lse + query + kTile)};
  const __m512 delta[2] = {_mm512_load_ps(h.delta + query),
                           _mm512_load_ps(h.delta + query + kTile)};
  for (int64_t row = 0; row < kUnit; ++row) {
    const int64_t tile = row / kTile, at = row % kTile * kTile;
    __m512 p[2], ds[2];
    for (int column = 0; column < 2; ++column) {
      const __m512 score = _mm512_load_ps(h.scores.At(tile, column) + at);
      const __m512 d_p = _mm512_load_ps(h.d_p.At(tile, column) + at);
      p[column] = Exp2<kParts>(_mm512_fmsub_ps(score, factor, lse[column]));
      ds[column] = _mm512_mul_ps(p[column], _mm512_sub_ps(d_p, delta[column]));
      if constexpr (kDrops) {
        p[column] = _mm512_maskz_mul_ps(KeptQueries(kept, row, column), p[column],
                                        _mm512_set1_ps(h.rule.scale));
      }
    }
    StoreParts<kParts>(p[0], p[1], h.p.At(2 * key_unit + tile, query_unit) + 2 * at);
    uint16_t* ds_row = h.ds.At(2 * key_unit + tile, query_unit) + 2 * at;
    StoreParts<kParts>(ds[0], ds[1], ds_row);
    if (row % 2 == 0) continue;
    for (int64_t part = 0; part < kParts * kTileElements; part += kTileElements) {
      Interleave(ds_row + part - kUnit, ds_row + part,
                 h.ds_b.At(key_unit, 2 * query_unit) + part + row / 2 * kUnit,
                 h.ds_b.At(key_unit, 2 * query_unit + 1) + part + row / 2 * kUnit);
    }
  }
}

// Units of 32 of one block that see each other.
struct Visible {
  const AttentionProblem& p;
  int64_t key, keys, query, queries;  // the block
  bool Pair(int64_t key_unit, int64_t query_unit) const {
    const int64_t first = query + query_unit * kUnit, at = key + key_unit * kUnit;
    return at < first + kUnit + p.offset && at + kUnit > p.FirstKey(first);
  }
};

// The gradients of the scores of one piece, from these and those of its probabilities.
template <int kParts>
void GradPiece(const AttentionProblem& p, const GradHead<kParts>& h, const Visible& block,
               int64_t key_unit, int64_t query_unit) {
  const int64_t key = block.key + key_unit * kUnit, query = block.query + query_unit * kUnit;
  KeptPairs kept;
  if (p.drops()) {
    FindKept(h.rule, p.PlaceOf(h.sequence_index, h.head, query, key), kUnit, &kept);
    DropGradients(h, kept);
  }
  if (Changes(h.terms)) {
    ChangePiece(h.terms, p.attrs.scale, query + p.offset - key, h.scores, h.d_p, h.delta + query);
  }
  if (NeedsMask(p, key, query)) MaskPiece(p, key, query, h.scores);
  if (p.drops()) {
    SoftmaxGradPiece<kParts, true>(h, query, key_unit, query_unit, p.attrs.scale, kept);
  } else {
    SoftmaxGradPiece<kParts, false>(h, query, key_unit, query_unit, p.attrs.scale, kept);
  }
}

template <typename Units, int kParts>
void GradBlock(const AttentionProblem& p, const GradHead<kParts>& h, const Visible& block) {
  const int64_t depth = p.scratch.head_dim / kUnit;
  const int64_t key_units = block.keys / kUnit, query_units = block.queries / kUnit;
  const int64_t key_at = block.key / kUnit, query_at = block.query / kUnit;
  for (int64_t i = 0; i < key_units; ++i) {
    int64_t first = query_units, last = 0;
    for (int64_t j = 0; j < query_units; ++j) {
      if (!block.Pair(i, j)) continue;
      first = std::min(first, j);
      last = j + 1;
      Units::template Multiply<kParts, false>(
          {h.k.At(2 * (key_at + i), 0), h.k.down, h.k.across},
          {h.q_t.At(0, 2 * (query_at + j)), h.q_t.down, h.q_t.across}, depth, h.scores);
      Units::template Multiply<kParts, false>(
          {h.v.At(2 * (key_at + i), 0), h.v.down, h.v.across},
          {h.d_o_t.At(0, 2 * (query_at + j)), h.d_o_t.down, h.d_o_t.across}, depth, h.d_p);
      GradPiece<kParts>(p, h, block, i, j);
    }
    for (int64_t c = 0; c < depth && first < last; ++c) {
      Units::template Multiply<kParts, true>(
          {h.p.At(2 * i, first), h.p.down, h.p.across},
          {h.d_o.At(query_at + first, 2 * c), h.d_o.down, h.d_o.across}, last - first,
          {h.dv.At(2 * (key_at + i), 2 * c), h.dv.down, h.dv.across});
      Units::template Multiply<kParts, true>(
          {h.ds.At(2 * i, first), h.ds.down, h.ds.across},
          {h.q.At(query_at + first, 2 * c), h.q.down, h.q.across}, last - first,
          {h.dk.At(2 * (key_at + i), 2 * c), h.dk.down, h.dk.across});
    }
  }
  for (int64_t j = 0; j < query_units; ++j) {
    int64_t first = key_units, last = 0;
    for (int64_t i = 0; i < key_units; ++i) {
      if (!block.Pair(i, j)) continue;
      first = std::min(first, i);
      last = i + 1;
    }
    for (int64_t c = 0; c < depth && first < last; ++c) {
      Units::template Multiply<kParts, true>(
          {h.k_t.At(2 * c, key_at + first), h.k_t.down, h.k_t.across},
          {h.ds_b.At(first, 2 * j), h.ds_b.down, h.ds_b.across}, last - first,
          {h.dq_t.At(2 * c, 2 * (query_at + j)), h.dq_t.down, h.dq_t.across});
    }
  }
}

template <int kParts>
void StartHead(const AttentionProblem& p, const AttentionOperands& io, int64_t sequence_index,
               int64_t head, const GradHead<kParts>& h) {
  const int64_t count = p.scratch.keys, padded = p.scratch.head_dim, end = p.attrs.sequence;
  const HeadRows d_o = p.QueryRows(io.d_o, sequence_index, head);
  Pack<kParts>(p.QueryRows(io.q, sequence_index, head), 0, count, end, p.head_dim, padded,
               {.b = h.q, .b_t = h.q_t});
  Pack<kParts>(d_o, 0, count, end, p.head_dim, padded, {.b = h.d_o, .b_t = h.d_o_t});
  Deltas(p.QueryRows(io.o, sequence_index, head), d_o, end, p.head_dim, count, h.delta);
  const float* lse = p.Lse(io.lse, sequence_index, head);
  for (int64_t r = 0; r < count; ++r) h.lse[r] = SeesKeys(lse, r, end) ? lse[r] * kLog2E : 0.0f;
  std::fill_n(h.dq_t.data, count * padded, 0.0f);
}

void StoreRows(const HeadRows& out, const Sums& tiles, int64_t end, int64_t width, float factor,
               bool add) {
  const __m512 by = _mm512_set1_ps(factor);
  for (int64_t row = 0; row < end; ++row) {
    for (int64_t tile = 0; tile * kTile < width; ++tile) {
      const float* at = tiles.At(row / kTile, tile) + row % kTile * kTile;
      __m512 values = _mm512_mul_ps(_mm512_load_ps(at), by);
      if (add) values = _mm512_add_ps(values, LoadColumns(out, row, tile * kTile, width));
      StoreColumns(out, row, tile * kTile, width, values);
    }
  }
}

template <int kParts>
GradHead<kParts> CarveGradHead(const AttentionProblem& p, Scratch scratch) {
  const int64_t padded = p.scratch.head_dim, size = p.scratch.keys * padded;
  const int64_t depth = padded / kUnit, wide = padded / kTile, block = kGradBlock / kUnit;
  const auto take = [&](int64_t n) { return scratch.Take<uint16_t>(n * kParts); };
  const auto sums = [&](int64_t n) { return scratch.Take<float>(n); };
  return {.k = {take(size), depth, 1},
          .v = {take(size), depth, 1},
          .k_t = {take(size), 1, wide},
          .q = {take(size), wide, 1},
          .q_t = {take(size), 1, depth},
          .d_o = {take(size), wide, 1},
          .d_o_t = {take(size), 1, depth},
          .p = {take(kGradBlock * kGradBlock), block, 1},
          .ds = {take(kGradBlock * kGradBlock), block, 1},
          .ds_b = {take(kGradBlock * kGradBlock), 1, block},
          .scores = {sums(kUnit * kUnit), 2, 1},
          .d_p = {sums(kUnit * kUnit), 2, 1},
          .dq_t = {sums(size), 1, wide},
          .dk = {sums(size), wide, 1},
          .dv = {sums(size), wide, 1},
          .lse = sums(p.scratch.keys),
          .delta = sums(p.scratch.keys)};
}

template <typename Units, int kParts>
void Backward(const AttentionProblem& p, const AttentionOperands& io, const AttentionTask& task,
              Scratch scratch) {
  [[maybe_unused]] const typename Units::Thread thread;
  const int64_t count = p.scratch.keys, padded = p.scratch.head_dim, end = p.attrs.sequence;
  const int64_t b = task.sequence_index;
  GradHead<kParts> h = CarveGradHead<kParts>(p, scratch);
  h.sequence_index = b;
  h.rule = RuleOf(p.attrs.terms);
  Pack<kParts>(p.KeyRows(io.k, b, task.kv_head), 0, count, end, p.head_dim, padded,
               {.a = h.k, .a_t = h.k_t});
  Pack<kParts>(p.KeyRows(io.v, b, task.kv_head), 0, count, end, p.head_dim, padded, {.a = h.v});
  std::fill_n(h.dk.data, count * padded, 0.0f);
  std::fill_n(h.dv.data, count * padded, 0.0f);
  alignas(64) float scales[kUnit];
  std::fill_n(scales, kUnit, p.attrs.scale);
  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t head = task.kv_head * p.group() + g;
    h.head = head;
    h.terms = TermsOfHead(p.attrs.terms, head);
    StartHead<kParts>(p, io, b, head, h);
    for (int64_t query = 0; query < end; query += kGradBlock) {
      const int64_t queries = std::min(kGradBlock, count - query);
      const int64_t first = p.FirstKey(query) / kGradBlock * kGradBlock;
      const int64_t last = std::min(query + queries + p.offset, count);
      for (int64_t key = first; key < last; key += kGradBlock) {
        GradBlock<Units, kParts>(p, h, {p, key, std::min(kGradBlock, count - key), query, queries});
      }
    }
    for (int64_t query = 0; query < end; query += kUnit) {
      StoreTransposed(p.QueryRows(io.dq, b, head),
                      {h.dq_t.At(0, query / kTile), h.dq_t.down, h.dq_t.across}, query, end,
                      p.head_dim, scales, p.add_queries);
    }
  }
  StoreRows(p.KeyRows(io.dk, b, task.kv_head), h.dk, end, p.head_dim, p.attrs.scale, p.add_keys);
  StoreRows(p.KeyRows(io.dv, b, task.kv_head), h.dv, end, p.head_dim, 1.0f, p.add_keys);
}

}  // namespace

AttentionTaskFunction* TilesBackward(TileUnits units) {
  if (units == TileUnits::kVectors) return Backward<VectorUnits, 1>;
  return units == TileUnits::kAmx ? Backward<AmxUnits, 1> : Backward<AmxUnits, 3>;
}

}  // namespace terrace::kernels::cpu
HWY_POP_ATTRIBUTES
