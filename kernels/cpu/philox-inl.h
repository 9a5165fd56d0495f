// Random bits by position (philox.h) on vectors: a block a lane.
//
// Included once for each instruction set by foreach_target.h, as simd-inl.h; hence no #pragma once.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_PHILOX_INL_H_
#undef TERRACE_KERNELS_CPU_PHILOX_INL_H_
#else
#define TERRACE_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/philox.h"
#include "kernels/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

using D32 = hn::RebindToUnsigned<D>;
using V32 = hn::Vec<D32>;

// The upper and the lower half of the products of all lanes with `factor`.
struct WideProduct {
  V32 high, low;
};
HWY_INLINE WideProduct MultiplyWide(V32 x, uint32_t factor) {
  const D32 d32;
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(x)} * factor;
  return {.high = hn::Set(d32, static_cast<uint32_t>(product >> 32)),
          .low = hn::Set(d32, static_cast<uint32_t>(product))};
#else
  const hn::RepartitionToWide<D32> d64;
  const V32 by = hn::Set(d32, factor);
  const auto even = hn::MulEven(x, by);
  const auto odd = hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, x))), by);
  return {.high = hn::OddEven(hn::BitCast(d32, odd), hn::BitCast(d32, hn::ShiftRight<32>(even))),
          .low = hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even))};
#endif
}

struct Counters {
  V32 c0, c1, c2, c3;
};
// One block of random words a lane (philox.h), in the order of the lanes.
HWY_INLINE void RandomWords(PhiloxKey key, Counters c, uint32_t* to) {
  const D32 d32;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const WideProduct product0 = MultiplyWide(c.c0, kPhiloxFactor0);
    const WideProduct product1 = MultiplyWide(c.c2, kPhiloxFactor1);
    c.c0 = hn::Xor(hn::Xor(product1.high, c.c1), hn::Set(d32, key.word[0]));
    c.c2 = hn::Xor(hn::Xor(product0.high, c.c3), hn::Set(d32, key.word[1]));
    c.c1 = product1.low;
    c.c3 = product0.low;
    key.word[0] += kPhiloxKeyStep0;
    key.word[1] += kPhiloxKeyStep1;
  }
  hn::StoreInterleaved4(c.c0, c.c1, c.c2, c.c3, d32, to);
}

// Blocks `first`, first + 1, ... REQUIRES: `first` is a multiple of the lanes, so that the
// counter's lower word does not overflow.
HWY_INLINE void RandomBlocks(PhiloxKey key, uint32_t third, uint64_t first, uint32_t* to) {
  const D32 d32;
  RandomWords(key,
              {.c0 = hn::Add(hn::Iota(d32, 0), hn::Set(d32, static_cast<uint32_t>(first))),
               .c1 = hn::Set(d32, static_cast<uint32_t>(first >> 32)),
               .c2 = hn::Set(d32, third),
               .c3 = hn::Zero(d32)},
              to);
}

// 16 bits each for `count` elements from `element` on: half e mod 8 of the block with counter
// {base + e / 8, third, 0}. REQUIRES: `base` is a multiple of 2^32.
HWY_INLINE void FillRandomBits(PhiloxKey key, uint32_t third, uint64_t base, int64_t element,
                               int64_t count, uint16_t* to) {
  constexpr size_t kWords = sizeof(PhiloxBlock) / sizeof(uint32_t);
  HWY_ALIGN uint32_t words[kWords * HWY_MAX_BYTES / sizeof(uint32_t)];
  const int64_t lanes = hn::Lanes(D32());
  const int64_t elements = lanes * kRoundsABlock;
  int64_t skip = element % elements;
  for (int64_t first = element - skip; count > 0; first += elements) {
    RandomBlocks(key, third, base + static_cast<uint64_t>(first / kRoundsABlock), words);
    const int64_t taken = std::min(count, elements - skip);
    // Elements in order are the lower and the upper halves of the words in order: little-endian.
    std::memcpy(to, reinterpret_cast<const uint16_t*>(words) + skip, taken * sizeof(uint16_t));
    to += taken;
    count -= taken;
    skip = 0;
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
