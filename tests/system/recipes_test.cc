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

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;  // the order of groups counts

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

v1::TrainSpec TrainOf(const Json& recorded) {
  const Json& arguments = recorded["arguments"];
  const Json& recipe = recorded["recipe"];
  v1::TrainSpec train;
  train.set_steps(static_cast<int64_t>(recorded["llama"]["losses"].size()));
  train.set_clip_grad_norm(recorded["clip_grad_norm"]);
  train.mutable_schedule()->set_name("constant");
  train.set_label_smoothing(recipe.value("label_smoothing", 0.0));
  train.set_z_loss(recipe.value("z_loss", 0.0));
  v1::OptimizerSpec* optimizer = train.mutable_optimizer();
  optimizer->set_lr(arguments["lr"]);
  optimizer->set_weight_decay(arguments["weight_decay"]);
  optimizer->set_epsilon(arguments["eps"]);
  optimizer->set_beta1(arguments["betas"][0]);
  optimizer->set_beta2(arguments["betas"][1]);
  optimizer->set_layer_decay(recipe.value("layer_decay", 0.0));
  if (!recipe.contains("groups")) return train;
  for (const auto& [match, update] : recipe["groups"].items()) {
    v1::ParameterGroup* group = optimizer->add_groups();
    group->set_match(match);
    group->set_lr_scale(update.value("lr_scale", 1.0));
    group->set_frozen(update.value("frozen", false));
    if (update.contains("weight_decay")) group->set_weight_decay(update["weight_decay"]);
  }
  return train;
}

struct Shape {
  std::string name;
  uint32_t data = 1, tensor = 1, pipeline = 1, zero = 0, context = 1;
  bool offload = false;  // of the optimizer's states
};

v1::Layout LayoutOfShape(const Shape& shape) {
  const uint32_t ranks = shape.data * shape.tensor * shape.pipeline * shape.context;
  v1::Layout layout = LayoutOf({.ranks = shape.data, .micro_batch = 2 / shape.data});
  layout.set_ranks(ranks);
  layout.set_tensor_parallel(shape.tensor);
  layout.set_pipeline_parallel(shape.pipeline);
  layout.set_schedule("1f1b");
  layout.set_zero_stage(shape.zero);
  layout.set_context_parallel(shape.context);
  layout.set_recompute(shape.context > 1 ? "full" : "none");
  if (!shape.offload) return layout;
  layout.set_chunk_bytes(4096);
  v1::Offload* offload = layout.mutable_offload();
  for (v1::TierShares* shares :
       {offload->mutable_parameter(), offload->mutable_gradient(), offload->mutable_activation()})
    shares->set_device(1);
  offload->mutable_optimizer()->set_host(1);
  return layout;
}

// Recipes of one part are there for what they find where one of several fails.
std::vector<Shape> ShapesOf(const std::string& recipe, const std::string& family) {
  std::vector<Shape> shapes = {{.name = "one rank"}};
  if (recipe == "layer_decay" || recipe == "label_smoothing" || recipe == "z_loss") return shapes;
  const uint32_t heads_over = family == "gpt2" ? 3 : 2;
  for (Shape& shape : std::vector<Shape>{{.name = "zero 1", .data = 2, .zero = 1},
                                         {.name = "zero 2", .data = 2, .zero = 2},
                                         {.name = "zero 3", .data = 2, .zero = 3},
                                         {.name = "tensor", .tensor = heads_over},
                                         {.name = "pipeline", .pipeline = 2},
                                         {.name = "context", .context = 2},
                                         {.name = "offload", .offload = true}}) {
    shapes.push_back(std::move(shape));
  }
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
      const JobResult result =
          TrainLayout(*golden, LayoutOfShape(shape), static_cast<int64_t>(expected.size()));
      ASSERT_EQ(result.losses.size(), expected.size()) << shape.name;
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(result.losses[i], expected[i], 1e-5 * expected[i])
            << family << ", " << shape.name << ", step " << i;
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
