// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/sampler.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(SamplerTest, TemperatureZeroTakesTheLikeliestAndOfEqualsTheFirst) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.Next(std::vector<float>{1, 5, 2, 5}), 1);
}

TEST(SamplerTest, TopKLeavesOutTheRest) {
  Sampler sampler({.temperature = 10, .top_k = 2});
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(sampler.Next(std::vector<float>{0, 3, 1, 2}), testing::AnyOf(1, 3));
  }
}

TEST(SamplerTest, FrequenciesFollowTheSoftmax) {
  Sampler sampler({.temperature = 2, .seed = 5});
  const std::vector<float> logits = {0, 2, 4};
  std::vector<int> counts(3);
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.Next(logits)];
  const double total = 1 + std::exp(1.0) + std::exp(2.0);
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(counts[i] / double{kDraws}, std::exp(double(i)) / total, 0.015) << i;
}

TEST(SamplerTest, TheSameSeedGivesTheSameTokens) {
  Sampler a({.temperature = 1, .seed = 9}), b({.temperature = 1, .seed = 9}),
      c({.temperature = 1, .seed = 10});
  const std::vector<float> logits(100, 1.0f);
  std::vector<int32_t> from_a, from_b, from_c;
  for (int i = 0; i < 50; ++i) {
    from_a.push_back(a.Next(logits));
    from_b.push_back(b.Next(logits));
    from_c.push_back(c.Next(logits));
  }
  EXPECT_EQ(from_a, from_b);
  EXPECT_NE(from_a, from_c);
}

TEST(SamplerTest, HugeLogitsDoNotOverflow) {
  Sampler sampler({.temperature = 0.01});
  EXPECT_EQ(sampler.Next(std::vector<float>{1e30f, 0, -1e30f}), 0);
}

}  // namespace
}  // namespace terrace
