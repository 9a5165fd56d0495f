// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/safetensors/file_sum.h"

#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

std::vector<std::byte> RandomBytes(size_t count) {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The words of docs/formats.md, one by one.
uint64_t SplitMix(uint64_t state) {
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}
uint64_t Key(uint64_t index) { return SplitMix((index + 1) * 0x9e3779b97f4a7c15) | 1; }
uint64_t SlowSum(std::vector<std::byte> bytes) {
  bytes.resize((bytes.size() + 3) / 4 * 4);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes.size() / 4; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes.data() + 4 * i, 4);
    sum += word * Key(i % 1024) * Key(1024 + i / 1024);
  }
  return sum;
}

TEST(FileSumTest, IsTheSumOfTheDocumentedFormula) {
  for (const size_t count : {0, 1, 3, 4, 5, 4095, 4096, 4097, 100'003}) {
    const std::vector<std::byte> bytes = RandomBytes(count);
    EXPECT_EQ(SumOfPart(0, bytes), SlowSum(bytes)) << count;
  }
}

TEST(FileSumTest, PartsAddUpHoweverTheyAreCut) {
  const std::vector<std::byte> bytes = RandomBytes(50'001);
  const uint64_t whole = SumOfPart(0, bytes);
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    uint64_t sum = 0;
    const size_t longest = random() % 9000 + 1;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t count = std::min(bytes.size() - begin, random() % longest + 1);
      sum += SumOfPart(begin, std::span(bytes).subspan(begin, count));
      begin += count;
    }
    ASSERT_EQ(sum, whole) << "round " << round;
  }
}

TEST(FileSumTest, AnyChangedBitAndAnySwapIsSeen) {
  std::vector<std::byte> bytes = RandomBytes(3 * 4096 + 10);
  const uint64_t whole = SumOfPart(0, bytes);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {0, 7}) {
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      ASSERT_NE(SumOfPart(0, bytes), whole) << at;
      bytes[at] ^= static_cast<std::byte>(1 << bit);
    }
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 4096, bytes.begin() + 4096);
  EXPECT_NE(SumOfPart(0, bytes), whole) << "two blocks are in each other's place";
  std::swap_ranges(bytes.begin(), bytes.begin() + 4096, bytes.begin() + 4096);
  std::swap_ranges(bytes.begin() + 100, bytes.begin() + 104, bytes.begin() + 2000);
  EXPECT_NE(SumOfPart(0, bytes), whole) << "two words are in each other's place";
}

TEST(FileSumTest, TwoFlippedSignBitsAreSeenAnywhereInABlock) {
  std::vector<std::byte> bytes(4096);
  std::vector<uint64_t> seen;
  for (size_t word = 0; word < 1024; ++word) {
    bytes[4 * word + 3] = std::byte{0x80};
    seen.push_back(SumOfPart(0, bytes));
    bytes[4 * word + 3] = std::byte{0};
  }
  // Flipping words a and b cancels exactly when their parts sum to zero modulo 2^64.
  for (size_t a = 0; a < seen.size(); ++a) {
    for (size_t b = a + 1; b < seen.size(); ++b) {
      ASSERT_NE(seen[a] + seen[b], 0u) << a << " " << b;
      ASSERT_NE(seen[a], seen[b]) << a << " " << b;
    }
  }
}

}  // namespace
}  // namespace terrace
