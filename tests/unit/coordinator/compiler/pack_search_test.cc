// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_search.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/pack_data.h"
#include "tests/unit/coordinator/compiler/pack_tiny.h"

namespace terrace {
namespace {

constexpr int64_t kManySteps = int64_t{1} << 32;

void ExpectApart(const PackProblem& problem, const std::vector<int64_t>& offsets) {
  for (size_t a = 0; a < problem.items.size(); ++a) {
    for (size_t b = a + 1; b < problem.items.size(); ++b) {
      const PackItem &p = problem.items[a], &q = problem.items[b];
      if (p.begin >= q.end || q.begin >= p.end) continue;
      EXPECT_TRUE(offsets[a] + p.bytes <= offsets[b] || offsets[b] + q.bytes <= offsets[a])
          << a << " and " << b;
    }
  }
}

void ExpectOptimumAndProof(const PackProblem& problem) {
  const int64_t optimum = OptimumByAllOrders(problem);
  PackSearch search(problem);
  PackPlacement placement;
  int64_t steps = kManySteps;
  ASSERT_EQ(search.Fit(optimum, &steps, &placement), FitVerdict::kFits);
  EXPECT_EQ(placement.arena_bytes, optimum);
  ExpectApart(problem, placement.offsets);
  EXPECT_EQ(search.Fit(optimum - kPackAlignment, &steps, &placement), FitVerdict::kDoesNotFit);
  EXPECT_EQ(placement.arena_bytes, optimum);  // untouched
  EXPECT_GT(steps, 0);
}

TEST(PackSearchTest, FindsTheOptimumAndProvesThatThereIsNothingBelow) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ExpectOptimumAndProof(MakePackProblem(RandomTinyBuffers(seed, 7)));
  }
}

TEST(PackSearchTest, ProvesThatTheBoundCannotBeHad) {
  ExpectOptimumAndProof(MakePackProblem(RandomTinyBuffers(kSeedWithoutPackingAtTheBound, 9)));
}

TEST(PackSearchTest, SameInputSameStepsSameOffsets) {
  const PackProblem problem = MakePackProblem(ReadPackBuffers(TERRACE_PACK_DATA "/C.1048576.csv"));
  PackPlacement first, second;
  int64_t steps_first = kManySteps, steps_second = kManySteps;
  ASSERT_EQ(PackSearch(problem).Fit(1048576, &steps_first, &first), FitVerdict::kFits);
  PackSearch search(problem);
  PackPlacement unused;
  int64_t some = 1000;
  search.Fit(problem.lower_bound_bytes, &some, &unused);  // leaves nothing behind
  ASSERT_EQ(search.Fit(1048576, &steps_second, &second), FitVerdict::kFits);
  EXPECT_EQ(first.offsets, second.offsets);
  EXPECT_EQ(steps_first, steps_second);
}

TEST(PackSearchTest, GivesUpWhenTheStepsAreUsedUp) {
  const PackProblem problem = MakePackProblem(ReadPackBuffers(TERRACE_PACK_DATA "/E.1048576.csv"));
  PackPlacement placement = {.arena_bytes = 7};
  int64_t steps = 1 << 20;
  EXPECT_EQ(PackSearch(problem).Fit(1048576, &steps, &placement), FitVerdict::kGaveUp);
  EXPECT_EQ(steps, 0);
  EXPECT_EQ(placement.arena_bytes, 7);
}

TEST(PackSearchTest, PartsThatDoNotMeetAreSolvedOneByOne) {
  // Ten copies of a problem in a row: as one they would be out of reach.
  const PackProblem one = MakePackProblem(RandomTinyBuffers(5, 7));
  PackProblem ten = {.slots = 10 * one.slots};
  for (int copy = 0; copy < 10; ++copy) {
    for (PackItem item : one.items) {
      item.begin += copy * one.slots;
      item.end += copy * one.slots;
      ten.items.push_back(item);
    }
  }
  const int64_t optimum = OptimumByAllOrders(one);
  PackPlacement placement;
  int64_t steps = 1 << 20;
  ASSERT_EQ(PackSearch(ten).Fit(optimum, &steps, &placement), FitVerdict::kFits);
  ExpectApart(ten, placement.offsets);
  EXPECT_EQ(PackSearch(ten).Fit(optimum - kPackAlignment, &steps, &placement),
            FitVerdict::kDoesNotFit);
}

}  // namespace
}  // namespace terrace
