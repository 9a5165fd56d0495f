// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/sampler.h"

#include <cmath>
#include <set>
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

// Probabilities 0.4, 0.3, 0.2 and 0.1 of the tokens 2, 0, 3 and 1.
const std::vector<float> kTenths = {std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)};

std::set<int32_t> Drawn(const SamplerOptions& options, const std::vector<int32_t>& text = {}) {
  Sampler sampler(options);
  std::set<int32_t> drawn;
  for (int i = 0; i < 500; ++i) drawn.insert(sampler.Next(kTenths, text));
  return drawn;
}

TEST(SamplerTest, TopPKeepsTheLikeliestThatReachIt) {
  EXPECT_THAT(Drawn({.temperature = 1, .top_p = 0.35}), testing::ElementsAre(2));
  EXPECT_THAT(Drawn({.temperature = 1, .top_p = 0.65}), testing::ElementsAre(0, 2));
  EXPECT_THAT(Drawn({.temperature = 1, .top_p = 0.75}), testing::ElementsAre(0, 2, 3));
  EXPECT_THAT(Drawn({.temperature = 1, .top_p = 1}), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Drawn({.temperature = 1, .top_p = 0}), testing::ElementsAre(2)) << "one stays";
  // Of the two that top-k leaves, 0.4 of 0.7 is enough.
  EXPECT_THAT(Drawn({.temperature = 1, .top_k = 2, .top_p = 0.55}), testing::ElementsAre(2));
}

TEST(SamplerTest, MinPKeepsWhatHasThatPartOfTheLikeliest) {
  EXPECT_THAT(Drawn({.temperature = 1, .min_p = 0.45}), testing::ElementsAre(0, 2, 3));
  EXPECT_THAT(Drawn({.temperature = 1, .min_p = 0.55}), testing::ElementsAre(0, 2));
  EXPECT_THAT(Drawn({.temperature = 1, .min_p = 1}), testing::ElementsAre(2));
}

TEST(SamplerTest, WhatTheTextHasLosesOnceWhateverItsSign) {
  Sampler sampler({.temperature = 0, .repetition_penalty = 2});
  EXPECT_EQ(sampler.Next(std::vector<float>{3, 2, -1}, std::vector<int32_t>{0, 0}), 1);
  EXPECT_EQ(sampler.Next(std::vector<float>{-1, -1.5f}, std::vector<int32_t>{0}), 1);
  EXPECT_EQ(sampler.Next(std::vector<float>{3, 1}, std::vector<int32_t>{0, 0, 0}), 0)
      << "1.5 is left";
}

TEST(SamplerTest, WhatWasAddedLosesOnceAndForEachTime) {
  const std::vector<int32_t> text = {0, 1, 1, 2};
  constexpr size_t kPrompt = 1;
  Sampler presence({.temperature = 0, .presence_penalty = 1});
  EXPECT_EQ(presence.Next(std::vector<float>{1, 1.9f, 0.5f}, text, kPrompt), 0);
  EXPECT_EQ(presence.Next(std::vector<float>{1, 2.1f, 0.5f}, text, kPrompt), 1);
  Sampler frequency({.temperature = 0, .frequency_penalty = 1});
  EXPECT_EQ(frequency.Next(std::vector<float>{1, 2.9f, 0.5f}, text, kPrompt), 0);
  EXPECT_EQ(frequency.Next(std::vector<float>{1, 3.1f, 0.5f}, text, kPrompt), 1);
  EXPECT_EQ(frequency.Next(std::vector<float>{1, 0, 1.5f}, text, kPrompt), 0);
  Sampler both({.temperature = 0, .presence_penalty = -2, .frequency_penalty = 1});
  EXPECT_EQ(both.Next(std::vector<float>{1.4f, 1, 0.5f}, text, kPrompt), 2) << "1.5 is most";
}

TEST(SamplerTest, ABiasIsAddedBeforeThePenalties) {
  Sampler sampler({.temperature = 0, .repetition_penalty = 2, .logit_bias = {{2, 4}, {9, 50}}});
  EXPECT_EQ(sampler.Next(std::vector<float>{1, 0, -2}, std::vector<int32_t>{2}), 0)
      << "half of 2, and of equals the first";
  EXPECT_EQ(sampler.Next(std::vector<float>{1, 0, -1}, std::vector<int32_t>{2}), 2);
}

TEST(SamplerTest, HugeLogitsDoNotOverflow) {
  Sampler sampler({.temperature = 0.01});
  EXPECT_EQ(sampler.Next(std::vector<float>{1e30f, 0, -1e30f}), 0);
}

}  // namespace
}  // namespace terrace
