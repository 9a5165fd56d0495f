// What the bytes of int8 blocks (format.h) mean: those of 8-bit optimizers (Dettmers et al. 2022,
// arXiv 2110.02861).
//
// A block has one f32 scale, the largest magnitude in it, and for each element a code: that of the
// number nearest to the element over the scale, of 256 that are dense near 0 as well as near 1.
// Values of either sign have the signed map, others the unsigned one. The maps are bit for bit
// those of create_dynamic_map in bitsandbytes, and so are the codes: of the bounds between
// neighbouring numbers, how many lie below the element times the reciprocal of its scale.
//
// Compiles for the device too. Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TERRACE_MAP_FUNCTION __host__ __device__ inline
#else
#define TERRACE_MAP_FUNCTION inline
#endif

namespace terrace::kernels {

// The 256 numbers of a map in ascending order, the bounds between neighbours, and where to start
// looking: `start` has, for each value of the upper 16 bits of an f32 from 2^-23 up to 1, how many
// bounds lie below the smallest f32 that has them. No two bounds have the same upper bits, so that
// one comparison more gives the code.
struct DynamicMap {
  static constexpr int kCodes = 256;
  // Upper bits of 2^-23, below which no bound but 0's own lies, and of 1.
  static constexpr int32_t kFirstKey = (127 - 23) << 7, kLastKey = 127 << 7;
  static constexpr int kKeys = kLastKey - kFirstKey + 1;
  // Positive numbers first, then with signs; padding, since words of four bytes are read.
  static constexpr int kStarts = 2 * kKeys + 3;

  float number[kCodes] = {};
  float bound[kCodes] = {};  // bound[i]: between number i and i + 1; the last: infinity
  uint8_t start[kStarts] = {};
};

constexpr DynamicMap MakeDynamicMap(bool is_signed) {
  constexpr double kTenths[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  constexpr float kInfinity = std::bit_cast<float>(0x7f800000u);
  DynamicMap map;
  int count = 0;
  const auto insert = [&](float number) {
    int at = count++;
    for (; at > 0 && map.number[at - 1] > number; --at) map.number[at] = map.number[at - 1];
    map.number[at] = number;
  };
  // Of each decade the middles of equal intervals, as many again as of the decade below: as
  // torch.linspace has their ends.
  for (int decade = 0; decade < 7; ++decade) {
    const int intervals = is_signed ? 1 << decade : 2 << decade;
    const float first = 0.1f, last = 1.0f;
    const double step = (last - first) / static_cast<float>(intervals);
    const auto end = [&](int i) {
      return static_cast<float>(i < (intervals + 1) / 2 ? first + step * i
                                                        : last - step * (intervals - i));
    };
    for (int i = 0; i < intervals; ++i) {
      const float middle = (end(i) + end(i + 1)) / 2.0f * static_cast<float>(kTenths[decade]);
      insert(middle);
      if (is_signed) insert(-middle);
    }
  }
  insert(0.0f);
  insert(1.0f);
  for (int i = 0; i < DynamicMap::kCodes; ++i) {
    map.bound[i] =
        i + 1 < DynamicMap::kCodes ? (map.number[i] + map.number[i + 1]) * 0.5f : kInfinity;
  }
  int zero = 0;
  while (map.bound[zero] < 0) ++zero;
  for (int i = 0, above = zero, below = zero; i < DynamicMap::kKeys; ++i) {
    const uint32_t bits = static_cast<uint32_t>(DynamicMap::kFirstKey + i) << 16;
    const float lowest = i == 0 ? 0.0f : std::bit_cast<float>(bits);
    while (map.bound[above] < lowest) ++above;
    map.start[i] = static_cast<uint8_t>(above);
    const float highest = std::bit_cast<float>(bits | 0xffffu);
    while (below > 0 && map.bound[below - 1] >= -highest) --below;
    map.start[DynamicMap::kKeys + i] = static_cast<uint8_t>(below);
  }
  return map;
}

inline constexpr DynamicMap kSignedMap = MakeDynamicMap(true);
inline constexpr DynamicMap kUnsignedMap = MakeDynamicMap(false);

// What elements are multiplied by before they are given codes. Of a block that is not finite the
// scale says so, whatever the codes.
TERRACE_MAP_FUNCTION float InverseScale(float scale) {
  constexpr float kLeast = 0x1p-126f;
  return 1.0f / (scale > kLeast ? scale : kLeast);
}

// The code of an element over its scale; tables as in DynamicMap.
TERRACE_MAP_FUNCTION uint8_t DynamicCode(float scaled, const float* bound, const uint8_t* start) {
  uint32_t bits;
  memcpy(&bits, &scaled, sizeof(bits));
  int32_t key = static_cast<int32_t>(bits >> 16 & 0x7fffu);
  if (key < DynamicMap::kFirstKey) key = DynamicMap::kFirstKey;
  if (key > DynamicMap::kLastKey) key = DynamicMap::kLastKey;
  key += (bits >> 31 != 0 ? DynamicMap::kKeys : 0) - DynamicMap::kFirstKey;
  const uint8_t code = start[key];
  return static_cast<uint8_t>(scaled > bound[code] ? code + 1 : code);
}

}  // namespace terrace::kernels
