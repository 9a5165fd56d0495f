// Parameter groups, frozen ones too, rates that fall from layer to layer, and terms of the loss:
// twenty steps follow PyTorch (tests/golden/pytorch/make_recipes.py) on every kind of layout.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/layout_data.h"
#include "tests/system/numerics_job.h"
#include "tests/system/recorded_steps.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

// Recipes of one part are there for what they find where one of several fails.
std::vector<Shape> ShapesOf(const std::string& recipe, const std::string& family) {
  std::vector<Shape> shapes = {{.name = "one rank"}};
  if (recipe == "layer_decay" || recipe == "label_smoothing" || recipe == "z_loss") return shapes;
  for (Shape& shape : ShapesOfRanks(family)) shapes.push_back(std::move(shape));
  return shapes;
}

class RecipeTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Recipes, RecipeTest,
                         testing::Values("groups", "layer_decay", "layer_decay_and_groups",
                                         "label_smoothing", "z_loss", "both_terms",
                                         "last_layer_trained", "first_layer_trained",
                                         "attention_frozen", "tables_frozen", "biases_trained"),
                         [](const auto& info) { return info.param; });

TEST_P(RecipeTest, TwentyStepsFollowTheReference) {
  std::ifstream file(kFolder + "/recipes.json");
  const Json recorded = Json::parse(file)[GetParam()];
  for (const std::string family : {"gpt2", "llama"}) {
    auto golden = ReadGolden(kFolder + "/" + family);
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden->train = TrainOf(recorded);
    const auto expected = recorded[family]["losses"].get<std::vector<double>>();
    for (const Shape& shape : ShapesOf(GetParam(), family)) {
      ExpectFollows(*golden, shape, expected, family);
    }
  }
}

// Products round what is frozen to bf16 whether it rests in f32 or in bf16.
TEST(FrozenRecipeTest, FrozenWeightsInBf16ChangeNoBit) {
  std::ifstream file(kFolder + "/recipes.json");
  const Json recipes = Json::parse(file);
  auto golden = ReadGolden(kFolder + "/llama");
  ASSERT_TRUE(golden.ok()) << golden.status();
  for (const char* recipe : {"last_layer_trained", "attention_frozen", "tables_frozen"}) {
    golden->train = TrainOf(recipes[recipe]);
    for (const Shape& shape :
         {Shape{.name = "one rank"}, Shape{.name = "zero 1", .data = 2, .zero = 1},
          Shape{.name = "zero 3", .data = 2, .zero = 3}}) {
      std::vector<std::vector<double>> losses;
      for (const char* parameters : {"f32", "bf16"}) {
        v1::Layout layout = LayoutOfShape(shape);
        layout.set_precision("bf16");
        layout.set_parameter_format(parameters);
        losses.push_back(TrainLayout(*golden, layout, 6).losses);
      }
      EXPECT_EQ(losses[0].size(), 6u) << recipe << ", " << shape.name;
      EXPECT_EQ(losses[0], losses[1]) << recipe << ", " << shape.name;
    }
  }
}

}  // namespace
}  // namespace terrace
