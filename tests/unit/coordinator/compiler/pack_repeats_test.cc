// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_repeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/pack_data.h"
#include "tests/unit/coordinator/compiler/pack_tiny.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// `count` micro-batches: one buffer that lives on through the next, three short ones.
std::vector<PackBuffer> MicroBatches(int count) {
  std::vector<PackBuffer> buffers;
  for (int64_t m = 0; m < count; ++m) {
    const int64_t at = m * 20;
    buffers.push_back({.name = "kept", .bytes = 4096, .begin = at, .end = at + 34});
    buffers.push_back({.name = "x", .bytes = 512, .begin = at + 1, .end = at + 5});
    buffers.push_back({.name = "y", .bytes = 1024, .begin = at + 5, .end = at + 9});
    buffers.push_back({.name = "z", .bytes = 2048, .begin = at + 9, .end = at + 13});
  }
  return buffers;
}

void ExpectChains(const PackProblem& problem, const PackChains& chains) {
  std::vector<int> seen(problem.items.size());
  for (const std::vector<int>& chain : chains) {
    ASSERT_FALSE(chain.empty());
    for (size_t k = 0; k < chain.size(); ++k) {
      ++seen[chain[k]];
      EXPECT_EQ(problem.items[chain[k]].bytes, problem.items[chain[0]].bytes);
      if (k == 0) continue;
      EXPECT_LE(problem.items[chain[k - 1]].end, problem.items[chain[k]].begin);
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int>(seen.size()));
}

// The last one has no next through which its buffer could live.
TEST(PackRepeatsTest, WhatLivesThroughTheNextMicroBatchAlternates) {
  const PackProblem problem = MakePackProblem(MicroBatches(6));
  const PackChains chains = MakePackChains(problem);
  ExpectChains(problem, chains);
  EXPECT_THAT(chains, UnorderedElementsAre(
                          ElementsAre(0, 8, 16), ElementsAre(4, 12), ElementsAre(20),
                          ElementsAre(1, 9, 17), ElementsAre(5, 13, 21), ElementsAre(2, 10, 18),
                          ElementsAre(6, 14, 22), ElementsAre(3, 11, 19), ElementsAre(7, 15, 23)));
}

TEST(PackRepeatsTest, ChainsOfProgramsAreMuchFewerThanBuffers) {
  const PackStage stage =
      ReadPackStage(std::string(TERRACE_PACK_DATA "/gpt2_zbh1_selective_1x16_stage3.csv"));
  ASSERT_GT(stage.buffers.size(), 2000u);
  const PackProblem problem = MakePackProblem(stage.buffers);
  const PackChains chains = MakePackChains(problem);
  ExpectChains(problem, chains);
  EXPECT_LT(2 * chains.size(), 1 + problem.items.size() * 11 / 10);
}

TEST(PackRepeatsTest, WhateverTheProblemChainsNeverMeet) {
  int chained = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const PackProblem problem = MakePackProblem(RandomTinyBuffers(seed, 30));
    const PackChains chains = MakePackChains(problem);
    if (!chains.empty()) {
      ExpectChains(problem, chains);
      ++chained;
    }
    ExpectChains(problem, SinglePackChains(problem));
  }
  EXPECT_GT(chained, 0);
}

TEST(PackRepeatsTest, WhereNothingComesAgainThereAreNone) {
  const PackProblem problem =
      MakePackProblem({{{.name = "a", .bytes = 512, .begin = 0, .end = 9},
                        {.name = "b", .bytes = 512, .begin = 1, .end = 9},
                        {.name = "c", .bytes = 1024, .begin = 9, .end = 20}}});
  EXPECT_TRUE(MakePackChains(problem).empty());
}

}  // namespace
}  // namespace terrace
