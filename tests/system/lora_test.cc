// Low-rank adapters: twenty steps follow PEFT (tests/golden/pytorch/make_lora.py) on every kind of
// layout.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/layout/rules.h"
#include "tests/system/layout_kinds.h"
#include "tests/system/recorded_steps.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

Json Recorded() {
  std::ifstream file(kFolder + "/lora.json");
  return Json::parse(file);
}

class LoraTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Adapters, LoraTest,
                         testing::Values("all_linear", "query_and_value", "rslora", "mlp_up",
                                         "one_layer", "lora_plus", "norms_too"),
                         [](const auto& info) { return info.param; });

TEST_P(LoraTest, TwentyStepsFollowPeft) {
  const Json recorded = Recorded()[GetParam()];
  const bool on_ranks = GetParam() != "one_layer" && GetParam() != "lora_plus";
  int families = 0;
  for (const std::string family : {"gpt2", "llama", "gpt_neox", "phi3", "olmo2", "granite", "opt",
                                   "gemma3_text", "falcon", "falcon_groups", "cohere"}) {
    if (!recorded.contains(family)) continue;
    ++families;
    auto golden = ReadGolden(kFolder + "/" + family);
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden->train = TrainOf(recorded);
    AddAdapters(LoraOf(recorded["recipe"], family), &*golden);
    std::vector<Shape> shapes = {{.name = "one rank"}};
    if (on_ranks) {
      for (const Shape& shape : ShapesOfRanks(family)) {
        const ModelConfig& config = golden->model.config;
        const bool one_key_head = config.qkv != QkvKind::kApart && config.kv_heads == 1;
        if (shape.tensor == 1 || !(config.qk_norm_whole || one_key_head)) shapes.push_back(shape);
      }
    }
    const auto expected = recorded[family]["losses"].get<std::vector<double>>();
    for (const Shape& shape : shapes) ExpectFollows(*golden, shape, expected, family);
  }
  EXPECT_EQ(families, GetParam() == "all_linear" ? 11 : 2);
}

TEST(EveryKindTest, AdaptersTrainAsOnOneRank) {
  for (const std::string family : {"gpt2", "llama"}) {
    JobData data = SmallJob(family);
    AddAdapters({.rank = 4, .scale = 2, .targets = {"all-linear"}}, &data);
    ExpectEveryKindDoesAsOneRank(data, family);
  }
}

// Four layers of the family's golden, so that all schedules have their chunks.
JobData DeepJob(const std::string& family) {
  auto golden = ReadGolden(kFolder + "/" + family);
  EXPECT_TRUE(golden.ok()) << golden.status();
  ModelConfig config = golden->model.config;
  const std::vector<int64_t> window = config.window;
  const std::vector<bool> unrotated = config.unrotated;
  config.layers = 4;
  config.initializer_range = 0.15;  // enough for adapters alone to learn in a few steps
  for (size_t i = window.size(); i < 4; ++i) config.window.push_back(window[i % window.size()]);
  for (size_t i = unrotated.size(); i < 4 && !unrotated.empty(); ++i)
    config.unrotated.push_back(unrotated[i % unrotated.size()]);
  JobData data = RandomJob(BuildModel(config), /*rows=*/4, /*length=*/16);
  data.train.mutable_optimizer()->set_lr(1e-2);
  return data;
}

// Those that the layout's rules allow the model.
std::vector<LayoutKind> KindsOf(const Model& model) {
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(16);
  std::vector<LayoutKind> kinds;
  for (const LayoutKind& kind : kKinds) {
    if (CheckLayout(LayoutOfKind(kind), model, spec).ok()) kinds.push_back(kind);
  }
  return kinds;
}

// Attention and MLP side by side with one norm or two, fused tensors, norms behind the blocks,
// factors, positions from a later row of their table on, layers with other angles or none.
TEST(EveryKindTest, OtherBlocksTrainAsOnOneRankWithAndWithoutAdapters) {
  for (const std::string family : {"gpt_neox", "phi3", "olmo2", "granite", "opt", "gemma3_text",
                                   "falcon_groups", "smollm3", "cohere", "gemma2", "bloom"}) {
    JobData data = DeepJob(family);
    const std::vector<LayoutKind> kinds = KindsOf(data.model);
    EXPECT_GE(kinds.size(), 6u) << family;
    ExpectEveryKindDoesAsOneRank(data, family, kinds);
    AddAdapters({.rank = 4, .scale = 2, .targets = {"all-linear"}}, &data);
    ExpectEveryKindDoesAsOneRank(data, family + " with adapters", kinds);
  }
}

TEST(EveryKindTest, APartTrainsAsOnOneRank) {
  for (const std::string family : {"gpt2", "llama"}) {
    for (const char* frozen : {"*attn*", "*mlp*", "*[02].*"}) {
      JobData data = SmallJob(family);
      v1::ParameterGroup* group = data.train.mutable_optimizer()->add_groups();
      group->set_match(frozen);
      group->set_lr_scale(1);
      group->set_frozen(true);
      ExpectEveryKindDoesAsOneRank(data, absl::StrCat(family, " but ", frozen));
    }
  }
}

}  // namespace
}  // namespace terrace
