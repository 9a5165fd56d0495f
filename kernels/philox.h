// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2,
// 3"): random bits by position. A block of four words is a pure function of a counter and a key, so
// that whoever holds an element knows its random bits, whatever the layout.
//
// Compiles for the device too. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Kernels of both backends use it.
#ifdef __CUDACC__
#define TERRACE_PHILOX_FUNCTION __host__ __device__ inline
#else
#define TERRACE_PHILOX_FUNCTION inline
#endif

namespace terrace::kernels {

inline constexpr uint32_t kPhiloxFactor0 = 0xD2511F53, kPhiloxFactor1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9, kPhiloxKeyStep1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

struct PhiloxBlock {
  uint32_t word[4];
  bool operator==(const PhiloxBlock&) const = default;
};
struct PhiloxKey {
  uint32_t word[2];
  bool operator==(const PhiloxKey&) const = default;
};

TERRACE_PHILOX_FUNCTION PhiloxBlock Philox(PhiloxBlock c, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxFactor0} * c.word[0];
    const uint64_t product1 = uint64_t{kPhiloxFactor1} * c.word[2];
    c = {{static_cast<uint32_t>(product1 >> 32) ^ c.word[1] ^ key.word[0],
          static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ c.word[3] ^ key.word[1],
          static_cast<uint32_t>(product0)}};
    key.word[0] += kPhiloxKeyStep0;
    key.word[1] += kPhiloxKeyStep1;
  }
  return c;
}

}  // namespace terrace::kernels
