// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kLayers = 6;

v1::TrainSpec Train(const std::string& precision,
                    const std::vector<std::pair<std::string, std::string>>& rules) {
  v1::TrainSpec train;
  train.set_precision(precision);
  for (const auto& [where, what] : rules) {
    v1::PrecisionRule* rule = train.add_precision_rules();
    rule->set_where(where);
    rule->set_precision(what);
  }
  return train;
}

v1::Layout Resolved(const v1::TrainSpec& train) {
  v1::Layout layout;
  SetPrecisions(train, kLayers, &layout);
  return layout;
}

TEST(LayoutRulesPrecisionTest, WithoutRulesALayoutIsShort) {
  const v1::Layout layout = Resolved(Train("fp8", {}));
  EXPECT_EQ(layout.precision(), "fp8");
  EXPECT_EQ(layout.layer_precisions_size(), 0);
  EXPECT_EQ(AttentionPrecision(layout, 3), "fp8");
  EXPECT_EQ(MlpPrecision(layout, 3), "fp8");
  EXPECT_EQ(HeadPrecision(layout), "bf16") << "the loss is not computed with 8 bits";
  EXPECT_TRUE(ComputesIn(layout, "fp8"));
  EXPECT_FALSE(ComputesIn(layout, "fp32"));
}

TEST(LayoutRulesPrecisionTest, TheNarrowestRuleCounts) {
  const v1::Layout layout =
      Resolved(Train("fp8", {{"1-2.mlp", "fp32"}, {"0-2", "bf16"}, {"attention", "tf32"}}));
  EXPECT_EQ(AttentionPrecision(layout, 0), "bf16");
  EXPECT_EQ(MlpPrecision(layout, 0), "bf16");
  EXPECT_EQ(MlpPrecision(layout, 1), "fp32");
  EXPECT_EQ(AttentionPrecision(layout, 1), "bf16");
  EXPECT_EQ(AttentionPrecision(layout, 3), "tf32");
  EXPECT_EQ(MlpPrecision(layout, 3), "fp8");
  EXPECT_TRUE(ComputesIn(layout, "tf32"));
}

TEST(LayoutRulesPrecisionTest, HeadAndEmbeddingAreBesideTheLayers) {
  const v1::Layout layout = Resolved(Train("bf16", {{"lm_head", "fp32"}, {"embedding", "fp32"}}));
  EXPECT_EQ(layout.layer_precisions_size(), 0);
  EXPECT_EQ(HeadPrecision(layout), "fp32");
  EXPECT_EQ(layout.embedding_precision(), "fp32");
  EXPECT_EQ(Resolved(Train("bf16", {{"embedding", "bf16"}})).embedding_precision(), "")
      << "that is how it is read anyway";
}

TEST(LayoutRulesPrecisionTest, SharesAreOfLayersTheMostFirst) {
  const v1::Layout layout = Resolved(Train("fp8", {{"first 1, last 1", "bf16"}}));
  const auto shares = MlpShares(layout);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].precision, "fp8");
  EXPECT_NEAR(shares[0].share, 4.0 / 6, 1e-12);
  EXPECT_EQ(shares[1].precision, "bf16");
}

TEST(LayoutRulesPrecisionTest, OnlyWhatProductsRoundAnywayIsRounded) {
  v1::Layout layout = Resolved(Train("bf16", {{"0-2.mlp", "fp32"}, {"3.attention", "fp8"}}));
  EXPECT_EQ(RoundedShare(layout), 0) << "the format is not chosen";
  layout.set_parameter_format("bf16");
  EXPECT_NEAR(RoundedShare(layout), (5.0 / 6) / 3 + 0.5 * 2 / 3, 1e-12);
  layout = Resolved(Train("bf16", {}));
  layout.set_parameter_format("bf16");
  EXPECT_EQ(RoundedShare(layout), 1);
}

TEST(LayoutRulesPrecisionTest, LayersThatTheModelHasNotAreRefused) {
  EXPECT_THAT(PrecisionProblems(Train("fp8", {{"0-5", "bf16"}, {"last 6", "bf16"}}), kLayers),
              IsEmpty());
  EXPECT_THAT(PrecisionProblems(Train("fp8", {{"5-6", "bf16"}}), kLayers),
              ElementsAre(HasSubstr("train.precision.layers: got '5-6', must name some of the "
                                    "model's 6 layers, 0 to 5; try 'last 1' for the last layer, "
                                    "5")));
}

TEST(LayoutRulesPrecisionTest, MoreLayersThanThereAreAreRefused) {
  for (const char* where : {"first 7", "last 9"}) {
    EXPECT_THAT(PrecisionProblems(Train("fp8", {{where, "bf16"}}), kLayers),
                ElementsAre(testing::EndsWith("layers, 0 to 5; try at most 6")));
  }
}

TEST(LayoutRulesPrecisionTest, TwoRulesThatDisagreeAreRefused) {
  EXPECT_THAT(PrecisionProblems(Train("fp8", {{"0-2", "bf16"}, {"first 1", "bf16"}}), kLayers),
              IsEmpty())
      << "they agree";
  EXPECT_THAT(PrecisionProblems(Train("fp8", {{"0-2", "bf16"}, {"2-3", "fp32"}}), kLayers),
              ElementsAre(HasSubstr("got '0-2' bf16 and '2-3' fp32, must give layer 2 one "
                                    "precision; try spans that do not overlap")));
  EXPECT_THAT(PrecisionProblems(Train("fp8", {{"0-2", "bf16"}, {"2.mlp", "fp32"}}), kLayers),
              IsEmpty())
      << "the second is narrower";
}

}  // namespace
}  // namespace terrace
