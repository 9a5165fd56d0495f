// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/compiler/pack_pages.h"
#include "coordinator/compiler/pack_row_pages.h"
#include "tests/unit/coordinator/compiler/pack_data.h"
#include "tests/unit/coordinator/compiler/pack_memory.h"

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kSteps = 4'000'000;
constexpr uint32_t kSeeds = 20;

// Few sizes, as layers have them; from an eighth of a page to five pages.
PackProblem RandomProblem(uint32_t seed, int count) {
  std::mt19937 random(seed);
  std::vector<int64_t> sizes;
  for (int k = 0; k < 6; ++k) sizes.push_back((1 + static_cast<int64_t>(random() % 40)) * 512);
  std::vector<PackBuffer> buffers;
  for (int i = 0; i < count; ++i) {
    const int64_t begin = static_cast<int64_t>(random() % 100);
    buffers.push_back({.name = std::to_string(i),
                       .bytes = sizes[random() % sizes.size()],
                       .begin = begin,
                       .end = begin + 1 + static_cast<int64_t>(random() % 40)});
  }
  return MakePackProblem(buffers);
}

// The fewest pages that do, or 0.
template <typename Pack>
int64_t FewestPages(const PackProblem& problem, int64_t base, const Pack& pack,
                    std::vector<RowPlace>* rests) {
  const int64_t least = (base + problem.lower_bound_bytes + kPage - 1) / kPage;
  for (int64_t pages = least; pages < least + least / 4 + 4; ++pages) {
    int64_t steps = kSteps;
    const auto found = pack(problem, RowRules{base, kPage, pages * kPage}, &steps);
    EXPECT_LT(steps, kSteps);
    if (!found.has_value()) continue;
    *rests = *found;
    return pages;
  }
  return 0;
}

// What is wrong with the rows of a packing, in the plainest way; empty: nothing.
std::string FirstFaultOfRows(const PackProblem& problem, int64_t base, int64_t pages,
                             const std::vector<RowPlace>& rests) {
  for (int t = 0; t < problem.slots; ++t) {
    std::set<int64_t> rows;
    std::vector<std::pair<int64_t, int64_t>> taken;
    int64_t whole = base / kPage;
    const auto take = [&](int64_t begin, int64_t bytes) {
      if (bytes == 0) return;
      taken.emplace_back(begin, begin + bytes);
      rows.insert(begin / kPage);
    };
    take(0, base % kPage);
    for (size_t i = 0; i < problem.items.size(); ++i) {
      const PackItem& item = problem.items[i];
      if (t < item.begin || t >= item.end || item.bytes % kPage == 0) continue;
      const auto [offset, next_row] = rests[i];
      const int64_t bytes = item.bytes % kPage;
      const int64_t first = std::min(bytes, kPage - offset % kPage);
      take(offset, first);
      take(next_row * kPage, bytes - first);
      if (first < bytes && next_row == offset / kPage) return absl::StrCat(i, " takes a row twice");
      if (item.bytes > kPage && offset % kPage != 0 && offset % kPage + first != kPage) {
        return absl::StrCat(i, " lies inside a row");
      }
    }
    for (const PackItem& item : problem.items) {
      if (item.begin <= t && t < item.end) whole += item.bytes / kPage;
    }
    std::sort(taken.begin(), taken.end());
    for (size_t k = 1; k < taken.size(); ++k) {
      if (taken[k].first < taken[k - 1].second) return absl::StrCat("bytes twice at ", t);
    }
    if (whole + static_cast<int64_t>(rows.size()) > pages) {
      return absl::StrCat(whole, " pages and ", rows.size(), " rows at ", t);
    }
  }
  return "";
}

TEST(PackRowsTest, WholePagesAndRowsAreNeverMoreThanTheMemory) {
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PackProblem problem = RandomProblem(seed, 40 + static_cast<int>(seed) * 10);
    const int64_t base = 256 * static_cast<int64_t>(seed % 50);
    for (const auto& pack : {PackIntoRows, EjectIntoRows}) {
      std::vector<RowPlace> rests;
      const int64_t pages = FewestPages(problem, base, pack, &rests);
      ASSERT_GT(pages, 0);
      EXPECT_EQ(FirstFaultOfRows(problem, base, pages, rests), "");
    }
  }
}

TEST(PackRowsTest, EveryBufferGetsAddressesOfItsRowsAndOfFreePages) {
  int aliased = 0;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PackProblem problem = RandomProblem(seed, 40 + static_cast<int>(seed) * 10);
    const int64_t base = 256 * static_cast<int64_t>(seed % 50);
    std::vector<RowPlace> rests;
    const int64_t pages = FewestPages(problem, base, PackIntoRows, &rests);
    ASSERT_GT(pages, 0);
    PackAddresses addresses(kPage, pages * kPage);
    int64_t steps = kSteps;
    const auto offsets = PlaceOnPages(problem, base, rests, &addresses, &steps);
    ASSERT_TRUE(offsets.has_value());
    const PagedPacking packing = {pages * kPage, addresses.Runs(), {*offsets}};
    EXPECT_EQ(FirstFault(problem, base, kPage, packing, *offsets), "");
    aliased += packing.runs.empty() ? 0 : 1;
  }
  EXPECT_GT(aliased, 15);
}

// At different times of the same memory, as the sequences of an arena are.
TEST(PackRowsTest, AnotherProblemTakesAddressesThatThereAre) {
  const PackProblem first = RandomProblem(5, 200), second = RandomProblem(6, 190);
  const int64_t base = 5 * kPage + 768;
  std::vector<RowPlace> rests, more_rests;
  const int64_t pages = std::max(FewestPages(first, base, PackIntoRows, &rests),
                                 FewestPages(second, base, PackIntoRows, &more_rests));
  PackAddresses addresses(kPage, pages * kPage), alone(kPage, pages * kPage);
  int64_t steps = kSteps;
  const auto offsets = PlaceOnPages(first, base, rests, &addresses, &steps);
  const int64_t runs = static_cast<int64_t>(addresses.Runs().size());
  const auto more = PlaceOnPages(second, base, more_rests, &addresses, &steps);
  ASSERT_TRUE(offsets.has_value() && more.has_value());
  const PagedPacking packing = {pages * kPage, addresses.Runs(), {*offsets, *more}};
  EXPECT_EQ(FirstFault(first, base, kPage, packing, *offsets), "");
  EXPECT_EQ(FirstFault(second, base, kPage, packing, *more), "");
  ASSERT_TRUE(PlaceOnPages(second, base, more_rests, &alone, &steps).has_value());
  EXPECT_LT(addresses.Runs().size(), runs + alone.Runs().size());
}

// A problem of many buffers ends when its steps do, not when an order does.
TEST(PackRowsTest, OrdersStopWhenTheirStepsAreUsed) {
  const PackProblem problem = RandomProblem(3, 3000);
  const int64_t least = (problem.lower_bound_bytes + kPage - 1) / kPage;
  int64_t steps = 1'000'000;
  EXPECT_EQ(PackIntoRows(problem, {0, kPage, 2 * least * kPage}, &steps), std::nullopt);
  EXPECT_LE(steps, 0);
  EXPECT_GT(steps, -100'000);
}

TEST(PackRowsTest, EjectionsNeedFewerPagesThanOrders) {
  int64_t orders = 0, ejections = 0;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const PackProblem problem = RandomProblem(seed, 240);
    std::vector<RowPlace> rests;
    orders += FewestPages(problem, 0, PackIntoRows, &rests);
    ejections += FewestPages(problem, 0, EjectIntoRows, &rests);
  }
  EXPECT_LT(ejections, orders);
}

// One page, most of which is in front of a buffer that does not fit beside it whatever makes way.
TEST(PackRowsTest, EjectionsThatGetStuckLeaveTheirSteps) {
  const PackProblem problem =
      MakePackProblem(std::vector<PackBuffer>{{.name = "a", .bytes = 1024, .begin = 0, .end = 2}});
  int64_t steps = 1'000'000'000;
  EXPECT_EQ(EjectIntoRows(problem, {3328, kPage, kPage}, &steps), std::nullopt);
  EXPECT_GT(steps, 999'000'000);
}

TEST(PackRowsTest, TheSameProblemIsPackedTheSameWay) {
  const PackProblem problem = RandomProblem(7, 200);
  for (const auto& pack : {PackIntoRows, EjectIntoRows}) {
    std::vector<RowPlace> one, other;
    FewestPages(problem, 512, pack, &one);
    FewestPages(problem, 512, pack, &other);
    EXPECT_EQ(one, other);
  }
}

TEST(PackRowsTest, NothingIsFoundWithoutStepsOrMemory) {
  const PackProblem problem = RandomProblem(1, 100);
  const int64_t least = (problem.lower_bound_bytes + kPage - 1) / kPage;
  for (const auto& pack : {PackIntoRows, EjectIntoRows}) {
    int64_t steps = 10;
    EXPECT_EQ(pack(problem, {0, kPage, 2 * least * kPage}, &steps), std::nullopt);
    steps = kSteps;
    EXPECT_EQ(pack(problem, {0, kPage, (least - 1) * kPage}, &steps), std::nullopt);
  }
}

}  // namespace
}  // namespace terrace
