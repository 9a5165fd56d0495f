// The attention engines for CPUs with bf16 arithmetic: products of 32 x 32 pieces by tiles, on AMX
// (AmxUnits) or vectors (VectorUnits), AVX-512 softmax between them.
//
// Scores are held transposed, [keys, queries], with 16 queries in a vector; so are the output of
// the forward pass and dq, which are transposed when they are stored. Every product is "A tiles
// times B tiles" (attention_tiles-inl.h); the layouts are chosen so that probabilities and score
// gradients are ready to be operands as they leave the registers.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention_tiles-inl.h"

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,bmi2")
namespace terrace::kernels::cpu {
namespace {

constexpr float kMasked = -1e30f;  // below any score; times scale * log2(e) still finite
constexpr int64_t kKeyBlock = kAttentionKeyBlock;
constexpr int64_t kGradBlock = kAttentionGradBlock;

// True when 32 keys from `key` and 32 queries from `query` hold pairs that must not see each other.
bool NeedsMask(const AttentionProblem& p, int64_t key, int64_t query) {
  return key + kUnit - 1 > query + p.offset || key < p.FirstKey(query + kUnit - 1) ||
         key + kUnit > p.attrs.sequence;
}

// Overwrites the scores of pairs that must not see each other, in 2 x 2 tiles.
void MaskPiece(const AttentionProblem& p, int64_t key, int64_t query, const Sums& scores) {
  const int64_t window = p.attrs.window > 0 ? p.attrs.window : INT32_MAX;
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i limit =
      _mm512_set1_epi32(static_cast<int32_t>(std::min<int64_t>(window, INT32_MAX)));
  for (int64_t tile = 0; tile < 4; ++tile) {
    float* at = scores.At(tile / 2, tile % 2);
    for (int64_t r = 0; r < kTile; ++r) {
      // How far the query is behind the key: 0 is itself, below 0 in its past.
      const int64_t row = key + tile / 2 * kTile + r;
      const int64_t behind = query + p.offset + tile % 2 * kTile - row;
      const __m512i distance = _mm512_add_epi32(iota, _mm512_set1_epi32(static_cast<int>(behind)));
      const __mmask16 inside = row < p.attrs.sequence ? 0xffff : 0;  // not padding
      const __mmask16 visible = inside & _mm512_cmpge_epi32_mask(distance, _mm512_setzero_si512()) &
                                _mm512_cmplt_epi32_mask(distance, limit);
      const __m512 score = _mm512_load_ps(at + r * kTile);
      _mm512_store_ps(at + r * kTile, _mm512_mask_mov_ps(_mm512_set1_ps(kMasked), visible, score));
    }
  }
}

// Online softmax of 32 queries (Milakov and Gimelshein 2018, arXiv 1805.02867), in powers of two.
template <int kParts>
struct Panel {
  Operand<kParts> queries;        // B tiles of the transposed queries
  Sums scores;                    // [128 keys, 32]
  Operand<kParts> probabilities;  // B tiles, [128 keys, 32]
  Sums output;                    // [head_dim, 32], not yet divided by `sum`
  float* maximum;                 // [32], of the scores times scale * log2(e)
  float* sum;                     // [32]
};

__m512 Top(const Sums& scores, int64_t keys, int64_t column) {
  __m512 top[4];
  std::fill_n(top, 4, _mm512_set1_ps(kMasked));
  for (int64_t tile = 0; tile < keys / kTile; ++tile) {
    const float* at = scores.At(tile, column);
    for (int64_t r = 0; r < kTile; ++r) {
      top[r % 4] = _mm512_max_ps(top[r % 4], _mm512_load_ps(at + r * kTile));
    }
  }
  return _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3]));
}

// Scores of one column of tiles to probabilities, two keys at a time; returns their sum.
template <int kParts>
__m512 Exponentials(const Panel<kParts>& panel, int64_t keys, int64_t column, __m512 factor,
                    __m512 maximum) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512 even_sum = _mm512_setzero_ps(), odd_sum = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < keys / 2; ++pair) {
    const float* at = panel.scores.At(pair / 8, column) + pair % 8 * 2 * kTile;
    __m512 even = Exp2<kParts>(_mm512_fmsub_ps(_mm512_load_ps(at), factor, maximum));
    __m512 odd = Exp2<kParts>(_mm512_fmsub_ps(_mm512_load_ps(at + kTile), factor, maximum));
    even_sum = _mm512_add_ps(even_sum, even);
    odd_sum = _mm512_add_ps(odd_sum, odd);
    uint16_t* out = panel.probabilities.At(pair / kTile, column) + pair % kTile * kUnit;
    for (int part = 0; part < kParts; ++part) {
      const __m512i bits = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
      _mm512_store_si512(out + part * kTileElements, _mm512_permutexvar_epi16(order, bits));
      if (part + 1 == kParts) break;
      even = _mm512_sub_ps(even, WidenLow(bits));
      odd = _mm512_sub_ps(odd, WidenHigh(bits));
    }
  }
  return _mm512_add_ps(even_sum, odd_sum);
}

template <int kParts>
void Softmax(const Panel<kParts>& panel, int64_t keys, int64_t padded, float scale) {
  const __m512 factor = _mm512_set1_ps(scale * kLog2E);
  for (int64_t column = 0; column < 2; ++column) {
    float* maximum_at = panel.maximum + column * kTile;
    float* sum_at = panel.sum + column * kTile;
    const __m512 before = _mm512_load_ps(maximum_at);
    const __m512 top = _mm512_mul_ps(Top(panel.scores, keys, column), factor);
    const __m512 maximum = _mm512_max_ps(before, top);
    const __m512 decay = Exp2<3>(_mm512_sub_ps(before, maximum));
    const __m512 sum = Exponentials<kParts>(panel, keys, column, factor, maximum);
    _mm512_store_ps(sum_at, _mm512_fmadd_ps(_mm512_load_ps(sum_at), decay, sum));
    _mm512_store_ps(maximum_at, maximum);
    if (_mm512_cmp_ps_mask(before, maximum, _CMP_NEQ_UQ) == 0) continue;
    for (int64_t tile = 0; tile < padded / kTile; ++tile) {
      float* at = panel.output.At(tile, column);
      for (int64_t r = 0; r < kSumElements; r += kTile) {
        _mm512_store_ps(at + r, _mm512_mul_ps(_mm512_load_ps(at + r), decay));
      }
    }
  }
}

// Stores transposed tiles [width, 32] as 32 rows, or adds them; row r is multiplied by factor[r].
void StoreTransposed(const HeadRows& out, const Sums& tiles, int64_t first, int64_t end,
                     int64_t width, const float* factor, bool add) {
  for (int64_t column = 0; column < 2; ++column) {
    const int64_t count = std::min(kTile, end - first - column * kTile);
    for (int64_t tile = 0; tile * kTile < width; ++tile) {
      alignas(64) float rows[kSumElements];
      TransposeTile(tiles.At(tile, column), rows);
      for (int64_t i = 0; i < count; ++i) {
        const __m512 by = _mm512_set1_ps(factor[column * kTile + i]);
        const int64_t row = first + column * kTile + i;
        __m512 values = _mm512_mul_ps(_mm512_load_ps(rows + i * kTile), by);
        if (add) values = _mm512_add_ps(values, LoadColumns(out, row, tile * kTile, width));
        StoreColumns(out, row, tile * kTile, width, values);
      }
    }
  }
}

template <int kParts>
void StartPanel(const Panel<kParts>& panel, int64_t padded) {
  std::fill_n(panel.output.data, padded * kUnit, 0.0f);
  std::fill_n(panel.maximum, kUnit, kMasked);
  std::fill_n(panel.sum, kUnit, 0.0f);
}

// Goes on where o and lse ended: as if all earlier keys were one, with lse as its score.
template <int kParts>
void ResumePanel(const AttentionProblem& p, const Panel<kParts>& panel, const HeadRows& o,
                 const float* lse, int64_t query, int64_t end) {
  for (int64_t column = 0; column < 2; ++column) {
    for (int64_t tile = 0; tile < p.scratch.head_dim / kTile; ++tile) {
      alignas(64) float rows[kSumElements];
      for (int64_t i = 0; i < kTile; ++i) {
        const int64_t row = query + column * kTile + i;
        _mm512_store_ps(rows + i * kTile, row < end ? LoadColumns(o, row, tile * kTile, p.head_dim)
                                                    : _mm512_setzero_ps());
      }
      TransposeTile(rows, panel.output.At(tile, column));
    }
  }
  for (int64_t r = 0; r < kUnit; ++r) {
    const bool sees = SeesKeys(lse, query + r, end);
    panel.maximum[r] = sees ? lse[query + r] * kLog2E : kMasked;
    panel.sum[r] = sees ? 1.0f : 0.0f;
  }
}

template <int kParts>
void FinishPanel(const AttentionProblem& p, const Panel<kParts>& panel, const HeadRows& out,
                 float* lse, int64_t query, int64_t end) {
  alignas(64) float factor[kUnit];
  for (int64_t r = 0; r < kUnit; ++r) {
    factor[r] = 1.0f / panel.sum[r];
    if (query + r < end) lse[query + r] = panel.maximum[r] * kLn2 + std::log(panel.sum[r]);
  }
  StoreTransposed(out, panel.output, query, end, p.head_dim, factor, /*add=*/false);
}

// Adds what `keys` keys from tile row `unit` (of 32 keys) give to a panel of queries from `query`.
template <typename Units, int kParts>
void ForwardBlock(const AttentionProblem& p, const Operand<kParts>& k, const Operand<kParts>& v,
                  const Panel<kParts>& panel, int64_t base, int64_t key, int64_t keys,
                  int64_t query) {
  const int64_t depth = p.scratch.head_dim / kUnit, unit = (key - base) / kUnit;
  for (int64_t i = 0; i < keys / kUnit; ++i) {
    const Sums piece{panel.scores.At(2 * i, 0), panel.scores.down, panel.scores.across};
    Units::template Multiply<kParts, false>({k.At(2 * (unit + i), 0), k.down, k.across},
                                            panel.queries, depth, piece);
    if (NeedsMask(p, key + i * kUnit, query)) MaskPiece(p, key + i * kUnit, query, piece);
  }
  Softmax<kParts>(panel, keys, p.scratch.head_dim, p.attrs.scale);
  for (int64_t i = 0; i < depth; ++i) {
    Units::template Multiply<kParts, true>(
        {v.At(2 * i, unit), v.down, v.across}, panel.probabilities, keys / kUnit,
        {panel.output.At(2 * i, 0), panel.output.down, panel.output.across});
  }
}

template <typename Units, int kParts>
void Forward(const AttentionProblem& p, const AttentionOperands& io, const AttentionTask& task,
             Scratch scratch) {
  [[maybe_unused]] const typename Units::Thread thread;
  const int64_t padded = p.scratch.head_dim, end = p.attrs.sequence;
  const int64_t depth = padded / kUnit, wide = padded / kTile;
  const int64_t base = p.FirstKey(task.first_query) / kUnit * kUnit;
  const int64_t count = std::max<int64_t>(p.EndKey(task.end_query) - base, 0);
  const auto take = [&](int64_t elements) { return scratch.Take<uint16_t>(elements * kParts); };
  const Operand<kParts> k{take(count * padded), depth, 1};
  const Operand<kParts> v{take(count * padded), 1, wide};
  const Panel<kParts> panel{
      .queries = {take(kUnit * padded), 1, depth},
      .scores = {scratch.Take<float>(kKeyBlock * kUnit), 1, kKeyBlock / kTile},
      .probabilities = {take(kKeyBlock * kUnit), 1, kKeyBlock / kUnit},
      .output = {scratch.Take<float>(padded * kUnit), 1, wide},
      .maximum = scratch.Take<float>(kUnit),
      .sum = scratch.Take<float>(kUnit)};
  Pack<kParts>(p.KeyRows(io.k, task.sequence_index, task.kv_head), base, count, end, p.head_dim,
               padded, {.a = k});
  Pack<kParts>(p.KeyRows(io.v, task.sequence_index, task.kv_head), base, count, end, p.head_dim,
               padded, {.a_t = v});
  const int64_t end_query = std::min(task.end_query, p.EndQuery());
  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t head = task.kv_head * p.group() + g;
    const HeadRows o = p.QueryRows(io.o, task.sequence_index, head);
    float* lse = p.Lse(io.lse, task.sequence_index, head);
    for (int64_t query = task.first_query; query < end_query; query += kUnit) {
      Pack<kParts>(p.QueryRows(io.q, task.sequence_index, head), query, kUnit, end, p.head_dim,
                   padded, {.b_t = panel.queries});
      if (p.add_queries) {
        ResumePanel<kParts>(p, panel, o, lse, query, end);
      } else {
        StartPanel<kParts>(panel, padded);
      }
      const int64_t last = p.EndKey(query + kUnit);
      for (int64_t key = p.FirstKey(query) / kUnit * kUnit; key < last; key += kKeyBlock) {
        ForwardBlock<Units, kParts>(p, k, v, panel, base, key, std::min(kKeyBlock, last - key),
                                    query);
      }
      FinishPanel<kParts>(p, panel, o, lse, query, end_query);
    }
  }
}

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

// Probabilities and score gradients of one piece: from the f32 tiles to operands, two keys by 32
// queries at a time.
template <int kParts>
void SoftmaxGradPiece(const GradHead<kParts>& h, int64_t query, int64_t key_unit,
                      int64_t query_unit, float scale) {
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
      const int64_t key = block.key + i * kUnit, query = block.query + j * kUnit;
      Units::template Multiply<kParts, false>(
          {h.k.At(2 * (key_at + i), 0), h.k.down, h.k.across},
          {h.q_t.At(0, 2 * (query_at + j)), h.q_t.down, h.q_t.across}, depth, h.scores);
      Units::template Multiply<kParts, false>(
          {h.v.At(2 * (key_at + i), 0), h.v.down, h.v.across},
          {h.d_o_t.At(0, 2 * (query_at + j)), h.d_o_t.down, h.d_o_t.across}, depth, h.d_p);
      if (NeedsMask(p, key, query)) MaskPiece(p, key, query, h.scores);
      SoftmaxGradPiece<kParts>(h, query, i, j, p.attrs.scale);
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
  const GradHead<kParts> h = CarveGradHead<kParts>(p, scratch);
  Pack<kParts>(p.KeyRows(io.k, b, task.kv_head), 0, count, end, p.head_dim, padded,
               {.a = h.k, .a_t = h.k_t});
  Pack<kParts>(p.KeyRows(io.v, b, task.kv_head), 0, count, end, p.head_dim, padded, {.a = h.v});
  std::fill_n(h.dk.data, count * padded, 0.0f);
  std::fill_n(h.dv.data, count * padded, 0.0f);
  alignas(64) float scales[kUnit];
  std::fill_n(scales, kUnit, p.attrs.scale);
  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t head = task.kv_head * p.group() + g;
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

AttentionEngine AmxAttentionEngine(MatmulPrecision precision) {
  if (precision == MatmulPrecision::kBF16)
    return {.forward = Forward<AmxUnits, 1>, .backward = Backward<AmxUnits, 1>};
  return {.forward = Forward<AmxUnits, 3>, .backward = Backward<AmxUnits, 3>};
}

AttentionEngine BF16AttentionEngine() {
  return {.forward = Forward<VectorUnits, 1>, .backward = Backward<VectorUnits, 1>};
}

}  // namespace terrace::kernels::cpu
HWY_POP_ATTRIBUTES
