// What terms do to the scores and probabilities of attention (attention_terms.h), on vectors.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_terms.cc"
#include "kernels/cpu/attention_terms.h"

#include <algorithm>
#include <cstring>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// At most 16 lanes, so that a strip is whole vectors.
using Lane = hn::CappedTag<float, kStripQueries>;
using Strip = hn::Vec<Lane>;
constexpr Lane kLane;

// The terms in the unit of scores before their factor.
struct Factors {
  Factors(const HeadTerms& terms, float scale)
      : inward(hn::Set(kLane, terms.softcap == 0 ? 0 : scale / terms.softcap)),
        outward(hn::Set(kLane, terms.softcap / scale)),
        slope(hn::Set(kLane, -terms.slope / scale)) {}
  Strip inward, outward, slope;
};

void Change(const HeadTerms& terms, float scale, const ScoreStrip& strip,
            const GradientStrip& gradient) {
  const Factors factors(terms, scale);
  const Strip one = hn::Set(kLane, 1.0f);
  const auto lanes = static_cast<int64_t>(hn::Lanes(kLane));
  for (int64_t lane = 0; lane < kStripQueries; lane += lanes) {
    const Strip queries =
        hn::Iota(kLane, static_cast<float>(strip.distance) + static_cast<float>(lane));
    for (int64_t r = 0; r < strip.keys; ++r) {
      float* at = strip.scores + r * strip.stride + lane;
      Strip score = hn::LoadU(kLane, at);
      if (terms.softcap != 0) {
        const Strip tanh = hn::Tanh(kLane, hn::Mul(score, factors.inward));
        score = hn::Mul(tanh, factors.outward);
        if (gradient.d_p != nullptr) {
          float* d_p = gradient.d_p + r * strip.stride + lane;
          const Strip delta = hn::LoadU(kLane, gradient.delta + lane);
          const Strip slope = hn::NegMulAdd(tanh, tanh, one);
          const Strip difference = hn::Sub(hn::LoadU(kLane, d_p), delta);
          hn::StoreU(hn::MulAdd(difference, slope, delta), kLane, d_p);
        }
      }
      const Strip distance = hn::Sub(queries, hn::Set(kLane, static_cast<float>(r)));
      hn::StoreU(hn::MulAdd(factors.slope, distance, score), kLane, at);
    }
  }
}

void ChangeOne(const HeadTerms& terms, float scale, int64_t distance, int64_t count,
               float* scores) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kLane));
  const Factors factors(terms, scale);
  for (int64_t i = 0; i < count; i += lanes) {
    HWY_ALIGN float part[kStripQueries] = {};
    const auto taken = static_cast<size_t>(std::min(lanes, count - i));
    std::memcpy(part, scores + i, taken * sizeof(float));
    Strip score = hn::Load(kLane, part);
    if (terms.softcap != 0)
      score = hn::Mul(hn::Tanh(kLane, hn::Mul(score, factors.inward)), factors.outward);
    const Strip keys = hn::Iota(kLane, static_cast<float>(i));
    const Strip distances = hn::Sub(hn::Set(kLane, static_cast<float>(distance)), keys);
    hn::Store(hn::MulAdd(factors.slope, distances, score), kLane, part);
    std::memcpy(scores + i, part, taken * sizeof(float));
  }
}

constexpr int64_t kPairQueries = kAttentionQueryBlock;
constexpr int64_t kBlocksAKey = kPairQueries / kRoundsABlock;

// 16 bits for each of 32 queries from that at position 8 `block` on, by key.
void FillScoreBits(const DropoutRule& rule, const DropoutPlace& place, uint32_t block, int64_t keys,
                   uint16_t* bits) {
  const D32 d32;
  constexpr size_t kWords = sizeof(PhiloxBlock) / sizeof(uint32_t);
  HWY_ALIGN uint32_t words[kWords * HWY_MAX_BYTES / sizeof(uint32_t)];
  const auto lanes = static_cast<int64_t>(hn::Lanes(d32));
  for (int64_t first = 0; first < keys * kBlocksAKey; first += lanes) {
    const V32 number = hn::Iota(d32, static_cast<uint32_t>(first));
    const V32 own = hn::And(number, hn::Set(d32, kBlocksAKey - 1));
    const V32 key = hn::ShiftRight<2>(number);
    static_assert(kBlocksAKey == 4);
    RandomWords(rule.key,
                {.c0 = hn::Add(own, hn::Set(d32, block)),
                 .c1 = hn::Add(key, hn::Set(d32, static_cast<uint32_t>(place.key))),
                 .c2 = hn::Set(d32, place.sequence),
                 .c3 = hn::Set(d32, place.head)},
                words);
    const int64_t count = std::min(lanes, keys * kBlocksAKey - first);
    std::memcpy(bits + first * kRoundsABlock, words, count * sizeof(PhiloxBlock));
  }
}

uint32_t KeptOf(const uint16_t* bits, uint32_t dropped_below) {
  const hn::CappedTag<uint16_t, kPairQueries> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d16));
  const auto below = hn::Set(d16, static_cast<uint16_t>(dropped_below));
  uint32_t kept = 0;
  for (int64_t i = 0; i < kPairQueries; i += lanes) {
    const auto drops = hn::Lt(hn::LoadU(d16, bits + i), below);
    uint8_t packed[8] = {};
    hn::StoreMaskBits(d16, hn::Not(drops), packed);
    uint32_t part = 0;
    std::memcpy(&part, packed, sizeof(part));
    kept |= part << i;
  }
  return kept;
}

// Queries that do not begin with a block of random bits lie in 32 from the block on and in the next
// 32.
void Find(const DropoutRule& rule, const DropoutPlace& place, int64_t keys, KeptPairs* kept) {
  HWY_ALIGN uint16_t bits[kPairQueries * kAttentionKeyBlock];
  const auto block = static_cast<uint32_t>(place.query / kRoundsABlock);
  const int64_t skip = place.query % kRoundsABlock;
  FillScoreBits(rule, place, block, keys, bits);
  for (int64_t r = 0; r < keys; ++r)
    kept->of_key[r] = KeptOf(bits + r * kPairQueries, rule.dropped_below) >> skip;
  if (skip == 0) return;
  FillScoreBits(rule, place, block + kBlocksAKey, keys, bits);
  for (int64_t r = 0; r < keys; ++r) {
    const uint32_t next = KeptOf(bits + r * kPairQueries, rule.dropped_below);
    kept->of_key[r] |= next << (kPairQueries - skip);
  }
}

void Drop(const KeptPairs& kept, float scale, const DropStrip& strip) {
  const hn::RebindToUnsigned<Lane> d32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(kLane));
  const Strip factor = hn::Set(kLane, scale);
  const auto one = hn::Set(d32, 1u);
  for (int64_t lane = 0; lane < kStripQueries; lane += lanes) {
    const auto query = static_cast<uint32_t>(strip.first_query + lane);
    const auto own = hn::Shl(one, hn::Iota(d32, query));
    for (int64_t r = 0; r < strip.keys; ++r) {
      float* at = strip.rows + r * strip.stride + lane;
      const auto stays = hn::TestBit(hn::Set(d32, kept.of_key[strip.first_key + r]), own);
      const Strip scaled = hn::Mul(hn::LoadU(kLane, at), factor);
      hn::StoreU(hn::IfThenElseZero(hn::RebindMask(kLane, stays), scaled), kLane, at);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace terrace::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(Change);
HWY_EXPORT(ChangeOne);
HWY_EXPORT(Find);
HWY_EXPORT(Drop);

void ChangeScores(const HeadTerms& terms, float scale, const ScoreStrip& strip,
                  const GradientStrip& gradient) {
  HWY_DYNAMIC_DISPATCH(Change)(terms, scale, strip, gradient);
}

void ChangeRow(const HeadTerms& terms, float scale, int64_t distance, int64_t count,
               float* scores) {
  HWY_DYNAMIC_DISPATCH(ChangeOne)(terms, scale, distance, count, scores);
}

void FindKept(const DropoutRule& rule, const DropoutPlace& place, int64_t keys, KeptPairs* kept) {
  HWY_DYNAMIC_DISPATCH(Find)(rule, place, keys, kept);
}

void DropPairs(const KeptPairs& kept, float scale, const DropStrip& strip) {
  HWY_DYNAMIC_DISPATCH(Drop)(kept, scale, strip);
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
