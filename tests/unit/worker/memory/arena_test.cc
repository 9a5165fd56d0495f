// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/arena.h"

#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

// Bytes of the mapping that follows the page named `name` in this process's maps; -1 when there is
// none.
int64_t MappedBytesAfter(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("/memfd:" + name + " ") == std::string::npos) continue;
    if (!std::getline(maps, line)) return -1;
    const size_t dash = line.find('-');
    return std::stoull(line.substr(dash + 1), nullptr, 16) -
           std::stoull(line.substr(0, dash), nullptr, 16);
  }
  return -1;
}

TEST(ArenaTest, ReservesExactlyTheBytesRoundedToPages) {
  const auto arena = Arena::Reserve("terrace-arena-7", 5'000'001);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->bytes(), 5'000'001);
  EXPECT_EQ(arena->reserved_bytes(), 5'001'216);
  EXPECT_EQ(MappedBytesAfter("terrace-arena-7"), 5'001'216);
}

TEST(ArenaTest, TouchMakesEveryPageResident) {
  auto arena = Arena::Reserve("terrace-arena-8", 9 << 20);
  ASSERT_TRUE(arena.ok());
  arena->Touch(3);
  for (int64_t i = 0; i < arena->reserved_bytes(); ++i)
    ASSERT_EQ(arena->data()[i], std::byte{0}) << i;
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  while (std::getline(smaps, line) && line.find("terrace-arena-8") == std::string::npos) {
  }
  int rss_lines = 0;
  int64_t rss_kb = 0;
  while (rss_lines < 2 && std::getline(smaps, line)) {  // the guard page's, then the arena's
    if (line.rfind("Rss:", 0) == 0 && ++rss_lines == 2) rss_kb = std::stoll(line.substr(4));
  }
  EXPECT_EQ(rss_kb, 9 << 10);
}

TEST(ArenaTest, MovedArenaKeepsItsAddressAndUnmapsOnce) {
  auto first = Arena::Reserve("terrace-arena-9", 4096);
  ASSERT_TRUE(first.ok());
  std::byte* data = first->data();
  data[0] = std::byte{42};
  {
    const Arena second = std::move(*first);
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(second.data()[0], std::byte{42});
  }
  EXPECT_EQ(MappedBytesAfter("terrace-arena-9"), -1);
}

TEST(ArenaTest, RefusalNamesTheArenaAndTheBytes) {
  const auto arena = Arena::Reserve("terrace-arena-1", int64_t{1} << 60);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()),
              testing::AllOf(testing::HasSubstr("terrace-arena-1"),
                             testing::HasSubstr("1152921504606846976")));
}

TEST(ArenaDeathTest, WritingPastTheEndCrashes) {
  auto arena = Arena::Reserve("terrace-arena-2", 4096);
  ASSERT_TRUE(arena.ok());
  volatile std::byte* data = arena->data();
  EXPECT_DEATH(data[4096] = std::byte{1}, "");
  EXPECT_DEATH(data[-1] = std::byte{1}, "");
}

}  // namespace
}  // namespace terrace
