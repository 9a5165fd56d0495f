// Dropout: twenty steps follow torch with the same elements dropped
// (tests/golden/pytorch/make_dropout.py), and what is dropped is the same on every kind of layout.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/system/layout_kinds.h"
#include "tests/system/recorded_steps.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

Json Recorded() {
  std::ifstream file(kFolder + "/dropout.json");
  return Json::parse(file);
}

DropoutConfig DropoutOf(const Json& recipe) {
  DropoutConfig dropout;
  if (recipe.contains("dropout")) {
    dropout.embedding = recipe["dropout"]["embedding"];
    dropout.residual = recipe["dropout"]["residual"];
    dropout.attention = recipe["dropout"].value("attention", 0.0);
  }
  if (recipe.contains("lora")) dropout.adapter = recipe["lora"]["dropout"];
  return dropout;
}

class DropoutTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Recipes, DropoutTest,
                         testing::Values("embedding_and_residual", "adapters", "all", "attention",
                                         "all_of_a_model"),
                         [](const auto& info) { return info.param; });

TEST_P(DropoutTest, TwentyStepsFollowTorch) {
  const Json recorded = Recorded()[GetParam()];
  const Json& recipe = recorded["recipe"];
  const auto families = recipe["families"].get<std::vector<std::string>>();
  for (const std::string& family : families) {
    auto golden = ReadGolden(kFolder + "/" + family);
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden->train = TrainOf(recorded);
    golden->model.config.dropout = DropoutOf(recipe);
    if (recipe.contains("lora")) AddAdapters(LoraOf(recipe["lora"], family), &*golden);
    std::vector<Shape> shapes = {{.name = "one rank"}};
    for (const Shape& shape : ShapesOfRanks(family)) shapes.push_back(shape);
    const auto expected = recorded[family]["losses"].get<std::vector<double>>();
    for (const Shape& shape : shapes) ExpectFollows(*golden, shape, expected, family);
  }
}

TEST(EveryKindTest, TheSameElementsAreDroppedAsOnOneRank) {
  for (const std::string family : {"gpt2", "llama"}) {
    JobData data = SmallJob(family);
    data.model.config.dropout = {.embedding = 0.2, .residual = 0.1, .adapter = 0};
    ExpectEveryKindDoesAsOneRank(data, family);
    data.model.config.dropout.adapter = 0.15;
    AddAdapters({.rank = 4, .scale = 2, .targets = {"all-linear"}}, &data);
    ExpectEveryKindDoesAsOneRank(data, family + " with adapters");
  }
}

// Attention knows the sequence, the query, the key and the head of what it drops, whatever of them
// a rank has. A piece of a ring has 4 tokens here, half of those that random bits are made for.
TEST(EveryKindTest, TheSameAttentionWeightsAreDroppedAsOnOneRank) {
  std::vector<LayoutKind> kinds = kKinds;
  kinds.push_back({.name = "ring", .context = 2});
  kinds.push_back({.name = "ring of half the heads", .tensor = 2, .context = 2});
  kinds.push_back({.name = "recomputed", .recompute = "full"});
  for (const std::string family : {"gpt2", "llama"}) {
    JobData data = SmallJob(family);
    data.model.config.dropout.attention = 0.2;
    ExpectEveryKindDoesAsOneRank(data, family, kinds);
  }
  JobData data = SmallJob("gpt2");
  data.model.config.dropout.attention = 0.2;
  ExpectEveryKindDoesAsOneRank(
      data, "gpt2",
      {{.name = "ulysses, tensor", .tensor = 2, .context = 2, .context_type = "ulysses"}});
}

// Another seed drops other elements, and a step others than the step before.
TEST(SeedTest, ItDecidesWhatIsDropped) {
  JobData data = SmallJob("gpt2");
  data.model.config.dropout.residual = 0.5;
  const std::vector<double> losses = TrainLayout(data, LayoutOfKind({}), 2, kInTurns).losses;
  EXPECT_EQ(TrainLayout(data, LayoutOfKind({}), 2, kInTurns).losses, losses);
  data.train.set_seed(data.train.seed() + 1);
  EXPECT_NE(TrainLayout(data, LayoutOfKind({}), 2, kInTurns).losses, losses);
}

}  // namespace
}  // namespace terrace
