// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

namespace terrace::kernels::cpu {
namespace {

constexpr int64_t kGuardBytes = 128;

std::vector<std::byte> RandomBytes(int64_t count) {
  std::mt19937_64 random(5);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Copies `bytes` between addresses that are `to` and `from` bytes past a cache line, and compares.
void ExpectCopied(const std::vector<std::byte>& source, int64_t to, int64_t from, int64_t bytes) {
  std::vector<std::byte> target(bytes + 64 + 2 * kGuardBytes, std::byte{0xa5});
  auto* line = target.data() + (-reinterpret_cast<uintptr_t>(target.data()) % 64);
  std::byte* start = line + kGuardBytes + to;
  StreamCopy(start, source.data() + from, bytes);
  const int64_t before = start - target.data();
  EXPECT_TRUE(std::equal(start, start + bytes, source.data() + from))
      << bytes << " bytes to " << to << " from " << from;
  const auto untouched = [](std::byte byte) { return byte == std::byte{0xa5}; };
  EXPECT_TRUE(std::all_of(target.begin(), target.begin() + before, untouched)) << to;
  EXPECT_TRUE(std::all_of(target.begin() + before + bytes, target.end(), untouched)) << to;
}

TEST(StreamCopyTest, CopiesEveryByteAtEveryAlignment) {
  const std::vector<std::byte> source = RandomBytes(kStreamCopyBytes + 4096);
  for (int64_t to : {0, 1, 4, 16, 31, 32, 63}) {
    for (int64_t from : {0, 1, 4, 32, 63}) {
      ExpectCopied(source, to, from, kStreamCopyBytes + 13 * to + from);
    }
  }
}

TEST(StreamCopyTest, CopiesEverySizeAroundTheThreshold) {
  const std::vector<std::byte> source = RandomBytes(kStreamCopyBytes + 4096);
  for (int64_t bytes = kStreamCopyBytes - 3; bytes < kStreamCopyBytes + 67; bytes += 5) {
    ExpectCopied(source, 4, 0, bytes);
  }
  for (int64_t bytes : {0, 1, 63, 64, 4096, 65'537}) ExpectCopied(source, 8, 3, bytes);
}

TEST(StreamCopyTest, AnotherThreadSeesTheWholeCopyAfterwards) {
  std::vector<std::byte> source = RandomBytes(4 * kStreamCopyBytes);
  std::vector<std::byte> middle(source.size()), target(source.size());
  for (int round = 0; round < 8; ++round) {
    std::reverse(source.begin(), source.end());
    StreamCopy(middle.data(), source.data(), std::ssize(source));
    std::thread([&] { StreamCopy(target.data(), middle.data(), std::ssize(middle)); }).join();
    ASSERT_EQ(target, source) << round;
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
