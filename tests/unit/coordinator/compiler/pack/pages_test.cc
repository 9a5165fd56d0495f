// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "coordinator/compiler/pack/orders.h"
#include "coordinator/compiler/pack/sweep.h"
#include "tests/unit/coordinator/compiler/pack/data.h"
#include "tests/unit/coordinator/compiler/pack/memory.h"

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;

// In one piece each, by the first order.
PagedProblem PagedProblemOf(const std::vector<PackBuffer>& buffers) {
  PagedProblem paged = {.problem = MakePackProblem(buffers)};
  paged.offsets =
      PlaceInOrder(paged.problem, MakePackOrder(paged.problem, PackPortfolio().front())).offsets;
  return paged;
}

int64_t BytesInOnePiece(const PagedProblem& paged, int64_t base) {
  int64_t bytes = base;
  for (size_t i = 0; i < paged.offsets.size(); ++i) {
    bytes = std::max(bytes, base + paged.offsets[i] + paged.problem.items[i].bytes);
  }
  return bytes;
}

// From a part of a page to `largest_pages` pages, lives of up to `longest` of a hundred moments.
std::vector<PackBuffer> RandomBuffers(uint32_t seed, int count, int64_t largest_pages,
                                      int64_t longest) {
  std::mt19937 random(seed);
  std::vector<PackBuffer> buffers;
  for (int i = 0; i < count; ++i) {
    const int64_t bytes = 1 + static_cast<int64_t>(random() % (largest_pages * kPage));
    const int64_t begin = static_cast<int64_t>(random() % 100);
    const int64_t life = 1 + static_cast<int64_t>(random() % longest);
    buffers.push_back(
        {.name = std::to_string(i), .bytes = bytes, .begin = begin, .end = begin + life});
  }
  return buffers;
}

// Two that stay are apart, a third that is as large as both holes fits into neither.
TEST(PackPagesTest, WhatFitsIntoNoHoleLiesInSeveral) {
  const std::vector<PackBuffer> buffers = {
      {.name = "first", .bytes = 2 * kPage, .begin = 0, .end = 2},
      {.name = "stays", .bytes = 2 * kPage, .begin = 0, .end = 4},
      {.name = "second", .bytes = 2 * kPage, .begin = 0, .end = 2},
      {.name = "large", .bytes = 4 * kPage, .begin = 2, .end = 4}};
  PagedProblem paged = {.problem = MakePackProblem(buffers),
                        .offsets = {0, 2 * kPage, 4 * kPage, 6 * kPage}};
  PackAddresses addresses(kPage, 6 * kPage);
  int64_t steps = 1000;
  std::vector<int64_t> offsets = paged.offsets;
  ASSERT_TRUE(SweepIntoPages(paged.problem, 0, &offsets, &addresses, &steps));
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 2 * kPage, 4 * kPage, 6 * kPage}));
  ASSERT_EQ(addresses.Runs().size(), 2u);
  EXPECT_EQ(addresses.Runs()[0].page, 0);
  EXPECT_EQ(addresses.Runs()[1].page, 4);
  EXPECT_EQ(addresses.alias_pages(), 4);
  int64_t none = 0;
  EXPECT_FALSE(SweepIntoPages(paged.problem, 0, &paged.offsets, &addresses, &none));
}

TEST(PackPagesTest, WhatComesLaterMakesRoom) {
  const std::vector<PackBuffer> buffers = {
      {.name = "early", .bytes = 2 * kPage, .begin = 0, .end = 3},
      {.name = "spark", .bytes = 256, .begin = 0, .end = 1},
      {.name = "long", .bytes = 3 * kPage, .begin = 1, .end = 5},
      {.name = "later", .bytes = 2 * kPage, .begin = 3, .end = 5}};
  const PackProblem problem = MakePackProblem(buffers);
  ASSERT_EQ(problem.lower_bound_bytes, 5 * kPage);
  std::vector<int64_t> offsets = {0, 2 * kPage, 5 * kPage, 3 * kPage};
  PackAddresses addresses(kPage, 5 * kPage);
  int64_t steps = 1000;
  ASSERT_TRUE(SweepIntoPages(problem, 0, &offsets, &addresses, &steps));
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 2 * kPage, 2 * kPage, 0}));
  EXPECT_TRUE(addresses.Runs().empty());
}

TEST(PackPagesTest, BuffersThatMeetNeverShareMemory) {
  int found = 0, paged_found = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PagedProblem paged = PagedProblemOf(
        RandomBuffers(seed, 20 + seed % 150, 1 + seed % 40, seed % 3 == 0 ? 12 : 60));
    const int64_t base = 256 * static_cast<int64_t>(seed % 50);
    const auto packing = PackIntoPages({{paged}}, {base, kPage});
    if (!packing.has_value()) continue;
    ++found;
    ASSERT_EQ(packing->offsets.size(), 1u);
    EXPECT_EQ(FirstFault(paged.problem, base, kPage, *packing, packing->offsets[0]), "");
    EXPECT_LT(packing->arena_bytes, BytesInOnePiece(paged, base));
    EXPECT_LE(packing->runs.size(), static_cast<size_t>(kPackRunsMax));
    int64_t pages = 0;
    for (const PackPageRun& run : packing->runs) {
      EXPECT_GE(run.page, 0);
      EXPECT_GE(run.pages, 1);
      EXPECT_LE((run.page + run.pages) * kPage, packing->arena_bytes);
      pages += run.pages;
    }
    EXPECT_LE(pages * kPage, kPackAddressTimes * packing->arena_bytes);
    paged_found += pages > 0;
    const auto again = PackIntoPages({{paged}}, {base, kPage});
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->offsets, packing->offsets);
    EXPECT_EQ(again->arena_bytes, packing->arena_bytes);
  }
  EXPECT_GT(found, 60);
  EXPECT_GT(paged_found, 40);
}

// Large enough that parts of pages do not matter.
TEST(PackPagesTest, BuffersOfManyPagesAreWithinOnePercentOfTheBound) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PagedProblem paged = PagedProblemOf(RandomBuffers(seed, 300, 400, 40));
    const int64_t bound = paged.problem.lower_bound_bytes;
    if (BytesInOnePiece(paged, 0) <= bound + bound / 100) continue;
    const auto packing = PackIntoPages({{paged}}, {0, kPage});
    ASSERT_TRUE(packing.has_value());
    EXPECT_LE(packing->arena_bytes, bound + bound / 100);
  }
}

TEST(PackPagesTest, SequencesOfOneArenaShareItsPages) {
  const PagedProblem train = PagedProblemOf(RandomBuffers(3, 300, 100, 40));
  const PagedProblem eval = PagedProblemOf(RandomBuffers(4, 290, 100, 40));
  const int64_t base = 10 * kPage + 256;
  const auto packing = PackIntoPages({{train, eval}}, {base, kPage});
  ASSERT_TRUE(packing.has_value());
  ASSERT_EQ(packing->offsets.size(), 2u);
  EXPECT_EQ(FirstFault(train.problem, base, kPage, *packing, packing->offsets[0]), "");
  EXPECT_EQ(FirstFault(eval.problem, base, kPage, *packing, packing->offsets[1]), "");
  const auto both = PackIntoPages({{train, train}}, {base, kPage});
  const auto one = PackIntoPages({{train}}, {base, kPage});
  ASSERT_TRUE(both.has_value() && one.has_value());
  EXPECT_LT(both->runs.size(), 2 * one->runs.size());
}

TEST(PackPagesTest, ALimitBelowTheUsualCeilingIsTriedFirst) {
  const PagedProblem paged = PagedProblemOf(RandomBuffers(3, 300, 400, 40));
  const int64_t bound = paged.problem.lower_bound_bytes;
  const int64_t limit = bound + bound / 500;
  const auto packing = PackIntoPages({{paged}}, {0, kPage, limit});
  ASSERT_TRUE(packing.has_value());
  EXPECT_LE(packing->arena_bytes, limit);
  EXPECT_GT(PackIntoPages({{paged}}, {0, kPage})->arena_bytes, limit);
}

struct PackedAgain {
  int64_t limit_bytes = 0;
  int64_t arena_bytes = 0;
};

// Of thirty random problems those that are packed within `limit`, which knows the bound and what
// was packed without a limit; 0: the problem is none for the test.
template <typename Limit>
std::vector<PackedAgain> PackAgain(int buffers, int64_t pages_max, const Limit& limit) {
  std::vector<PackedAgain> packed;
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PagedProblem paged = PagedProblemOf(RandomBuffers(seed, buffers, pages_max, 40));
    PageRules rules = {.page_bytes = kPage};
    rules.limit_bytes = limit(paged.problem.lower_bound_bytes, PackIntoPages({{paged}}, rules));
    if (rules.limit_bytes == 0) continue;
    const auto packing = PackIntoPages({{paged}}, rules);
    if (!packing.has_value()) continue;
    packed.push_back({.limit_bytes = rules.limit_bytes, .arena_bytes = packing->arena_bytes});
    EXPECT_EQ(FirstFault(paged.problem, 0, kPage, *packing, packing->offsets[0]), "");
  }
  return packed;
}

TEST(PackPagesTest, WhatFitsIsFoundBetweenTheUsualCeilings) {
  const auto below = [](int64_t bound, const auto& first) -> int64_t {
    if (!first.has_value() || first->arena_bytes <= bound + bound / 80) return 0;
    return first->arena_bytes - kPage;
  };
  const std::vector<PackedAgain> packed = PackAgain(240, 16, below);
  EXPECT_GT(std::count_if(packed.begin(), packed.end(),
                          [](const auto& one) { return one.arena_bytes <= one.limit_bytes; }),
            5);
}

// A page may be more of the bound than the usual ceilings are apart.
TEST(PackPagesTest, WhatFitsIsFoundAboveTheUsualCeilings) {
  const auto above = [](int64_t bound, const auto& first) -> int64_t {
    return first.has_value() ? 0 : bound + bound / 8;
  };
  const std::vector<PackedAgain> packed = PackAgain(60, 2, above);
  EXPECT_FALSE(packed.empty());
  for (const PackedAgain& one : packed) EXPECT_LE(one.arena_bytes, one.limit_bytes);
}

TEST(PackPagesTest, NothingIsFoundWhereOnePieceEachNeedsNoMore) {
  EXPECT_FALSE(
      PackIntoPages({{PagedProblemOf({{.name = "a", .bytes = 300, .end = 1}})}}, {0, kPage})
          .has_value());
  EXPECT_FALSE(PackIntoPages({}, {512, kPage}).has_value());
}

// Stages that orders leave more than 1 % over, with the pages that a processor has.
TEST(PackPagesTest, StagesThatNoOrderPacksAreWithinOnePercentOfTheirArena) {
  for (const char* name :
       {"gpt2_zbh1_none", "gpt2_zbh1_selective", "gpt2_zbh1_zero3_selective_stage2"}) {
    SCOPED_TRACE(name);
    const auto [buffers, persistent] =
        ReadPackStage(TERRACE_PACK_DATA "/" + std::string(name) + ".csv");
    ASSERT_GT(buffers.size(), 500u);
    const PagedProblem paged = PagedProblemOf(buffers);
    const int64_t bound = persistent + paged.problem.lower_bound_bytes;
    ASSERT_GT(BytesInOnePiece(paged, persistent), bound + bound / 100);
    const int64_t page = PackPageBytes("cpu", bound);
    const auto packing = PackIntoPages({{paged}}, {persistent, page});
    ASSERT_TRUE(packing.has_value());
    EXPECT_LE(packing->arena_bytes, bound + bound / 200);
    EXPECT_EQ(FirstFault(paged.problem, persistent, page, *packing, packing->offsets[0]), "");
  }
}

TEST(PackPagesTest, PagesOfTheProcessorGrowWithTheArenaUpToThoseOfADevice) {
  EXPECT_EQ(PackPageBytes("cpu", 1 << 20), 4096);
  EXPECT_EQ(PackPageBytes("cpu", int64_t{1} << 30), 64 << 10);
  EXPECT_EQ(PackPageBytes("cpu", int64_t{1} << 40), 2 << 20);
  EXPECT_EQ(PackPageBytes("cuda", 1 << 20), 2 << 20);
}

}  // namespace
}  // namespace terrace
