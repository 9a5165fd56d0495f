// Pages of an arena at second addresses.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/second_addresses.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/memory/arena.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kPage = 8192;  // of two of the system's

// 16 pages; addresses 16, 17, 18 are pages 5, 6, 2; 19 is 5 again.
ArenaExtent Extent() {
  return {.bytes = 16 * kPage, .page_bytes = kPage, .runs = {{5, 2}, {2, 1}, {5, 1}}};
}

void Fill(Arena& arena, int64_t page, int value) {
  std::fill_n(arena.data() + page * kPage, kPage, static_cast<std::byte>(value));
}

// Every byte of the page is this.
bool Holds(const Arena& arena, int64_t page, int value) {
  const std::byte* const data = arena.data() + page * kPage;
  return std::all_of(data, data + kPage,
                     [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

TEST(SecondAddressesTest, WhatIsWrittenAtOneAddressIsReadAtTheOther) {
  auto arena = Arena::Reserve("terrace-arena-70", Extent());
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->bytes(), 16 * kPage);
  arena->Touch(2);
  for (int page = 0; page < 16; ++page) EXPECT_TRUE(Holds(*arena, page, 0)) << page;
  for (int page = 0; page < 16; ++page) Fill(*arena, page, 100 + page);
  const std::vector<int> second = {5, 6, 2, 5};
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Holds(*arena, 16 + i, 100 + second[i])) << i;
  Fill(*arena, 16, 7);
  EXPECT_TRUE(Holds(*arena, 5, 7));
  EXPECT_TRUE(Holds(*arena, 19, 7));
  for (int page : {0, 1, 2, 3, 4, 6, 7, 15}) EXPECT_TRUE(Holds(*arena, page, 100 + page)) << page;
}

TEST(SecondAddressesTest, ARegionIsReadAndWrittenAtEitherAddress) {
  auto arena = Arena::Reserve("terrace-arena-74", Extent());
  ASSERT_TRUE(arena.ok());
  const std::vector<std::byte> from = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_EQ(arena->Write(18 * kPage - 1, from), absl::OkStatus());  // from page 6 on to page 2
  std::vector<std::byte> to(1);
  ASSERT_EQ(arena->Read(7 * kPage - 1, to), absl::OkStatus());
  EXPECT_EQ(to[0], std::byte{1});
  ASSERT_EQ(arena->Read(2 * kPage + 1, to), absl::OkStatus());
  EXPECT_EQ(to[0], std::byte{3});
  EXPECT_EQ(arena->Write(20 * kPage - 2, from).code(), absl::StatusCode::kOutOfRange);
}

// By the proportional set, which counts a page once however many addresses it has.
TEST(SecondAddressesTest, TheyCostNoMemory) {
  ArenaExtent extent = {.bytes = 64 * kPage, .page_bytes = kPage, .runs = {}};
  for (int i = 0; i < 8; ++i) extent.runs.push_back({3 + i, 40});
  auto arena = Arena::Reserve("terrace-arena-71", extent);
  ASSERT_TRUE(arena.ok());
  arena->Touch(1);
  std::ifstream smaps("/proc/self/smaps");
  int64_t kib = 0, arena_kib = 0, first = 0, end = 0;
  bool inside = false;
  const auto begin = reinterpret_cast<uintptr_t>(arena->data());
  for (std::string line; std::getline(smaps, line);) {
    unsigned long long from, to;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2 && line.find('-') < 17) {
      inside = from >= begin && to <= begin + (64 + 320) * kPage;
      if (inside && first == 0) first = static_cast<int64_t>(from);
      if (inside) end = static_cast<int64_t>(to);
    }
    if (inside && std::sscanf(line.c_str(), "Pss: %ld", &kib) == 1) arena_kib += kib;
  }
  EXPECT_EQ(end - first, (64 + 320) * kPage);
  // Each mapping's share is rounded down to a KiB.
  EXPECT_LE(arena_kib, 64 * kPage / 1024);
  EXPECT_GE(arena_kib, 64 * kPage / 1024 - 32);
}

constexpr int64_t kHuge = 2 << 20;

// KiB of mapped huge pages of shared memory between two addresses.
int64_t HugeKib(const std::byte* begin, const std::byte* end) {
  std::ifstream smaps("/proc/self/smaps");
  int64_t kib = 0, huge = 0;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long long from, to;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2 && line.find('-') < 17) {
      inside = from >= reinterpret_cast<uintptr_t>(begin) && to <= reinterpret_cast<uintptr_t>(end);
    }
    if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %ld", &kib) == 1) huge += kib;
  }
  return huge;
}

// Whether the system makes a huge page of shared memory when it is asked to.
bool SystemCollapses() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const auto arena = Arena::Reserve(
      "terrace-arena-77", ArenaExtent{.bytes = kHuge, .page_bytes = kHuge, .runs = {{0, 1}}});
  return arena.ok() && ::madvise(arena->data(), kHuge, kCollapse) == 0;
}

// Two pages of the second block and one of the third have second addresses; the last block is not
// whole.
TEST(SecondAddressesTest, TheBlocksAroundThemStayHugePagesWhereTheSystemGrantsSome) {
  const ArenaExtent extent = {.bytes = 4 * kHuge + kPage,
                              .page_bytes = kPage,
                              .runs = {{kHuge / kPage + 3, 2}, {2 * kHuge / kPage, 1}, {1024, 1}}};
  auto arena = Arena::Reserve("terrace-arena-78", extent);
  ASSERT_TRUE(arena.ok()) << arena.status();
  arena->Touch(1);
  for (int i = 0; i < 4; ++i) Fill(*arena, (extent.bytes / kPage) + i, 50 + i);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Holds(*arena, kHuge / kPage + 3 + i, 50 + i)) << i;
  EXPECT_TRUE(Holds(*arena, 2 * kHuge / kPage, 52));
  EXPECT_TRUE(Holds(*arena, 4 * kHuge / kPage, 53));
  EXPECT_TRUE(Holds(*arena, 2 * kHuge / kPage + 1, 0));
  if (!SystemCollapses()) GTEST_SKIP() << "no huge pages of shared memory here";
  EXPECT_EQ(HugeKib(arena->data(), arena->data() + extent.bytes), 2 * kHuge / 1024);
}

TEST(SecondAddressesTest, AnOverrunBehindThemIsACrash) {
  auto arena = Arena::Reserve("terrace-arena-72", Extent());
  ASSERT_TRUE(arena.ok());
  EXPECT_DEATH(static_cast<volatile std::byte*>(arena->data())[20 * kPage] = std::byte{1}, "");
}

TEST(SecondAddressesTest, MappingsThatTheSystemRefusesAreASentenceWithTheWayOut) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit little = before;
  little.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  const auto arena = Arena::Reserve("terrace-arena-73", Extent());
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("ulimit -v"));
}

// An arena without them is no file, and asks for none.
TEST(SecondAddressesTest, ALimitOnTheSizeOfFilesIsNamed) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit little = before;
  little.rlim_cur = 3 * kPage;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto contiguous = Arena::Reserve("terrace-arena-75", 16 * kPage);
  const auto pages = Arena::Reserve("terrace-arena-76", Extent());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(contiguous.ok()) << contiguous.status();
  EXPECT_EQ(pages.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pages.status().message()), HasSubstr("ulimit -f"));
}

}  // namespace
}  // namespace terrace
