// A pseudo-random permutation of [0, size) that is computed, not stored: a Feistel network over the
// next power of four, walked until the value falls inside (Black and Rogaway, "Ciphers with
// Arbitrary Finite Domains", 2002).
//
// Pure and thread-safe; the same on every machine.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Permutation {
 public:
  // `size` >= 1. Different keys give unrelated permutations.
  constexpr Permutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
    while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  }

  // Where `index` < size goes. Fewer than four rounds of the network on average.
  constexpr uint64_t operator()(uint64_t index) const {
    do {
      index = Network(index);
    } while (index >= size_);
    return index;
  }

 private:
  constexpr uint64_t Network(uint64_t value) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (MixBits(key_ ^ MixBits(right + (round << 56))) & mask);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  static constexpr uint64_t kRounds = 6;
  uint64_t size_;
  uint64_t key_;
  int half_bits_ = 1;
};

}  // namespace terrace
