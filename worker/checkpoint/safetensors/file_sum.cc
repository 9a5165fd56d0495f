// SPDX-License-Identifier: Apache-2.0
// key(i) = low(i % 1024) * high(i / 1024): one table for all blocks of 4 KiB, and a factor a block.
// Compiled with -O3 (CMakeLists.txt): the loop over a block's words vectorises.
#include "worker/checkpoint/safetensors/file_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace terrace {
namespace {

constexpr int64_t kWords = 1024;  // of a block
constexpr int64_t kWordBytes = 4;
constexpr int64_t kBlock = kWords * kWordBytes;

static_assert(std::endian::native == std::endian::little);

// The finaliser of splitmix64 (Steele, Lea, Flood 2014), made odd.
constexpr uint64_t OddKey(uint64_t index) {
  uint64_t z = (index + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) | 1;
}

// The halves apart: a product of 32-bit numbers is one instruction on every machine.
struct Keys {
  std::array<uint32_t, kWords> low = {}, high = {};
};
constexpr Keys MakeKeys() {
  Keys keys;
  for (int64_t i = 0; i < kWords; ++i) {
    const uint64_t key = OddKey(i);
    keys.low[i] = static_cast<uint32_t>(key);
    keys.high[i] = static_cast<uint32_t>(key >> 32);
  }
  return keys;
}
constexpr Keys kKeys = MakeKeys();
uint64_t BlockKey(int64_t block) { return OddKey(kWords + block); }

// Words [first, first + count) of a block.
uint64_t SumWords(const std::byte* bytes, int64_t first, int64_t count) {
  uint64_t low = 0, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes + i * kWordBytes, kWordBytes);
    low += uint64_t{word} * kKeys.low[first + i];
    high += uint64_t{word} * kKeys.high[first + i];
  }
  return low + (high << 32);
}

// Up to four bytes of one word; the others count as zero, and are another's part.
uint64_t SumPartialWord(int64_t word_in_block, int64_t byte_in_word,
                        std::span<const std::byte> bytes) {
  std::array<std::byte, kWordBytes> word = {};
  std::copy(bytes.begin(), bytes.end(), word.begin() + byte_in_word);
  return SumWords(word.data(), word_in_block, 1);
}

// Bytes that lie in one block, from its byte `at` on.
uint64_t SumInBlock(int64_t at, std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  if (const int64_t skip = at % kWordBytes; skip != 0) {
    const auto head = bytes.first(std::min<size_t>(kWordBytes - skip, bytes.size()));
    sum += SumPartialWord(at / kWordBytes, skip, head);
    at += head.size();
    bytes = bytes.subspan(head.size());
  }
  const int64_t words = bytes.size() / kWordBytes;
  sum += SumWords(bytes.data(), at / kWordBytes, words);
  const auto tail = bytes.subspan(words * kWordBytes);
  if (!tail.empty()) sum += SumPartialWord(at / kWordBytes + words, 0, tail);
  return sum;
}

}  // namespace

uint64_t SumOfPart(int64_t offset, std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  while (!bytes.empty()) {
    const int64_t at = offset % kBlock;
    const auto part = bytes.first(std::min<size_t>(kBlock - at, bytes.size()));
    sum += SumInBlock(at, part) * BlockKey(offset / kBlock);
    offset += part.size();
    bytes = bytes.subspan(part.size());
  }
  return sum;
}

}  // namespace terrace
