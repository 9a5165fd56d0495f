// The forward pass of the attention engines on tiles: products of 32 x 32 pieces, AVX-512 softmax
// between them.
//
// Scores are held transposed, [keys, queries], with 16 queries in a vector; so is the output, which
// is transposed when it is stored. Every product is "A tiles times B tiles"
// (attention_tiles-inl.h); the layouts are chosen so that probabilities are ready to be operands as
// they leave the registers.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention_scores-inl.h"
#include "kernels/cpu/attention_tiles.h"

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,bmi2")
namespace terrace::kernels::cpu {
namespace {

constexpr int64_t kKeyBlock = kAttentionKeyBlock;

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
  std::fill_n(top, 4, _mm512_set1_ps(kMaskedScore));
  for (int64_t tile = 0; tile < keys / kTile; ++tile) {
    const float* at = scores.At(tile, column);
    for (int64_t r = 0; r < kTile; ++r) {
      top[r % 4] = _mm512_max_ps(top[r % 4], _mm512_load_ps(at + r * kTile));
    }
  }
  return _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3]));
}

// What of a block is dropped after its sum has been taken.
struct Dropped {
  KeptPairs kept;
  float scale = 1;  // of what stays
};

// Scores of one column of tiles to probabilities, two keys at a time; returns their sum.
template <int kParts, bool kDrops>
__m512 Exponentials(const Panel<kParts>& panel, int64_t keys, int64_t column, __m512 factor,
                    __m512 maximum, const Dropped* dropped) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512 even_sum = _mm512_setzero_ps(), odd_sum = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < keys / 2; ++pair) {
    const float* at = panel.scores.At(pair / 8, column) + pair % 8 * 2 * kTile;
    __m512 even = Exp2<kParts>(_mm512_fmsub_ps(_mm512_load_ps(at), factor, maximum));
    __m512 odd = Exp2<kParts>(_mm512_fmsub_ps(_mm512_load_ps(at + kTile), factor, maximum));
    even_sum = _mm512_add_ps(even_sum, even);
    odd_sum = _mm512_add_ps(odd_sum, odd);
    if constexpr (kDrops) {
      const __m512 scale = _mm512_set1_ps(dropped->scale);
      even = _mm512_maskz_mul_ps(KeptQueries(dropped->kept, 2 * pair, column), even, scale);
      odd = _mm512_maskz_mul_ps(KeptQueries(dropped->kept, 2 * pair + 1, column), odd, scale);
    }
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

// `dropped`: null where nothing is.
template <int kParts>
void Softmax(const Panel<kParts>& panel, int64_t keys, int64_t padded, float scale,
             const Dropped* dropped) {
  const auto exponentials =
      dropped == nullptr ? Exponentials<kParts, false> : Exponentials<kParts, true>;
  const __m512 factor = _mm512_set1_ps(scale * kLog2E);
  for (int64_t column = 0; column < 2; ++column) {
    float* maximum_at = panel.maximum + column * kTile;
    float* sum_at = panel.sum + column * kTile;
    const __m512 before = _mm512_load_ps(maximum_at);
    const __m512 top = _mm512_mul_ps(Top(panel.scores, keys, column), factor);
    const __m512 maximum = _mm512_max_ps(before, top);
    const __m512 decay = Exp2<3>(_mm512_sub_ps(before, maximum));
    const __m512 sum = exponentials(panel, keys, column, factor, maximum, dropped);
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

template <int kParts>
void StartPanel(const Panel<kParts>& panel, int64_t padded, float scale) {
  std::fill_n(panel.output.data, padded * kUnit, 0.0f);
  std::fill_n(panel.maximum, kUnit, UnseenScore(scale));
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
    panel.maximum[r] = sees ? lse[query + r] * kLog2E : UnseenScore(p.attrs.scale);
    panel.sum[r] = sees ? 1.0f : 0.0f;
  }
}

template <int kParts>
void FinishPanel(const AttentionProblem& p, const Panel<kParts>& panel, const HeadRows& out,
                 float* lse, int64_t query, int64_t end) {
  alignas(64) float factor[kUnit];
  for (int64_t r = 0; r < kUnit; ++r) {
    // A query that is continued and sees no key here keeps its sum: 1, or 0 where o is 0.
    const bool sees = panel.sum[r] > 0;
    factor[r] = sees ? 1.0f / panel.sum[r] : 0.0f;
    if (query + r >= end || (p.add_queries && p.SeesNone(query + r))) continue;
    lse[query + r] = sees ? panel.maximum[r] * kLn2 + std::log(panel.sum[r]) : -INFINITY;
  }
  StoreTransposed(out, panel.output, query, end, p.head_dim, factor, /*add=*/false);
}

// A head of a sequence, and what is done to its scores.
struct ForwardHead {
  int64_t sequence_index = 0, head = 0;
  HeadTerms terms;
  DropoutRule rule;
};

// Keys of a task: packed from `base` on.
template <int kParts>
struct PackedKeys {
  Operand<kParts> k, v;
  int64_t base = 0;
};

// Adds what `keys` keys from `key` on give to a panel of queries from `query`.
template <typename Units, int kParts>
void ForwardBlock(const AttentionProblem& p, const ForwardHead& h, const PackedKeys<kParts>& packed,
                  const Panel<kParts>& panel, int64_t key, int64_t keys, int64_t query) {
  const int64_t depth = p.scratch.head_dim / kUnit, unit = (key - packed.base) / kUnit;
  const Operand<kParts>&k = packed.k, &v = packed.v;
  for (int64_t i = 0; i < keys / kUnit; ++i) {
    const Sums piece{panel.scores.At(2 * i, 0), panel.scores.down, panel.scores.across};
    Units::template Multiply<kParts, false>({k.At(2 * (unit + i), 0), k.down, k.across},
                                            panel.queries, depth, piece);
    if (Changes(h.terms)) {
      ChangePiece(h.terms, p.attrs.scale, query + p.offset - key - i * kUnit, piece, {}, nullptr);
    }
    if (NeedsMask(p, key + i * kUnit, query)) MaskPiece(p, key + i * kUnit, query, piece);
  }
  if (p.drops()) {
    Dropped dropped{.scale = h.rule.scale};
    FindKept(h.rule, p.PlaceOf(h.sequence_index, h.head, query, key), keys, &dropped.kept);
    Softmax<kParts>(panel, keys, p.scratch.head_dim, p.attrs.scale, &dropped);
  } else {
    Softmax<kParts>(panel, keys, p.scratch.head_dim, p.attrs.scale, nullptr);
  }
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
  const PackedKeys<kParts> packed{
      .k = {take(count * padded), depth, 1}, .v = {take(count * padded), 1, wide}, .base = base};
  const Panel<kParts> panel{
      .queries = {take(kUnit * padded), 1, depth},
      .scores = {scratch.Take<float>(kKeyBlock * kUnit), 1, kKeyBlock / kTile},
      .probabilities = {take(kKeyBlock * kUnit), 1, kKeyBlock / kUnit},
      .output = {scratch.Take<float>(padded * kUnit), 1, wide},
      .maximum = scratch.Take<float>(kUnit),
      .sum = scratch.Take<float>(kUnit)};
  Pack<kParts>(p.KeyRows(io.k, task.sequence_index, task.kv_head), base, count, p.keys, p.head_dim,
               padded, {.a = packed.k});
  Pack<kParts>(p.KeyRows(io.v, task.sequence_index, task.kv_head), base, count, p.keys, p.head_dim,
               padded, {.a_t = packed.v});
  const int64_t end_query = std::min(task.end_query, p.EndQuery());
  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t head = task.kv_head * p.group() + g;
    const ForwardHead h{.sequence_index = task.sequence_index,
                        .head = head,
                        .terms = TermsOfHead(p.attrs.terms, head),
                        .rule = RuleOf(p.attrs.terms)};
    const HeadRows o = p.QueryRows(io.o, task.sequence_index, head);
    float* lse = p.Lse(io.lse, task.sequence_index, head);
    for (int64_t query = task.first_query; query < end_query; query += kUnit) {
      Pack<kParts>(p.QueryRows(io.q, task.sequence_index, head), query, kUnit, end, p.head_dim,
                   padded, {.b_t = panel.queries});
      if (p.add_queries) {
        ResumePanel<kParts>(p, panel, o, lse, query, end);
      } else {
        StartPanel<kParts>(panel, padded, p.attrs.scale);
      }
      const int64_t last = p.EndKey(query + kUnit);
      for (int64_t key = p.FirstKey(query) / kUnit * kUnit; key < last; key += kKeyBlock) {
        ForwardBlock<Units, kParts>(p, h, packed, panel, key, std::min(kKeyBlock, last - key),
                                    query);
      }
      FinishPanel<kParts>(p, panel, o, lse, query, end_query);
    }
  }
}

}  // namespace

AttentionTaskFunction* TilesForward(TileUnits units) {
  if (units == TileUnits::kVectors) return Forward<VectorUnits, 1>;
  return units == TileUnits::kAmx ? Forward<AmxUnits, 1> : Forward<AmxUnits, 3>;
}

}  // namespace terrace::kernels::cpu
HWY_POP_ATTRIBUTES
