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
#include "tests/system/recorded_steps.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

Json Recorded() {
  std::ifstream file(kFolder + "/lora.json");
  return Json::parse(file);
}

LoraConfig LoraOf(const Json& recipe, const std::string& family) {
  LoraConfig lora = {.rank = recipe["rank"]};
  const auto rank = static_cast<double>(lora.rank);
  lora.scale =
      recipe["alpha"].get<double>() / (recipe.value("rslora", false) ? std::sqrt(rank) : rank);
  const Json& targets = recipe["targets"];
  if (targets.is_string()) {
    lora.targets = {targets};
  } else {
    lora.targets = targets[family].get<std::vector<std::string>>();
  }
  return lora;
}

// As make_lora.py lets adapters begin.
void AddAdapters(const LoraConfig& lora, JobData* data) {
  data->model.config.lora = lora;
  data->model = BuildModel(data->model.config);
  for (const Tensor& tensor : data->model.tensors) {
    if (!IsAdapter(tensor.role)) continue;
    std::vector<float>& values = data->weights[tensor.name];
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const double value = IsLoraB(tensor.role)
                               ? static_cast<double>((i * 53 + 7) % 97 - 48) / 2000
                               : static_cast<double>((i * 37 + 11) % 101 - 50) / 250;
      values.push_back(static_cast<float>(value));
    }
  }
}

class LoraTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Adapters, LoraTest,
                         testing::Values("all_linear", "query_and_value", "rslora", "mlp_up",
                                         "one_layer", "lora_plus", "norms_too"),
                         [](const auto& info) { return info.param; });

TEST_P(LoraTest, TwentyStepsFollowPeft) {
  const Json recorded = Recorded()[GetParam()];
  const bool on_ranks = GetParam() != "one_layer" && GetParam() != "lora_plus";
  for (const std::string family : {"gpt2", "llama"}) {
    auto golden = ReadGolden(kFolder + "/" + family);
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden->train = TrainOf(recorded);
    AddAdapters(LoraOf(recorded["recipe"], family), &*golden);
    std::vector<Shape> shapes = {{.name = "one rank"}};
    if (on_ranks) {
      for (const Shape& shape : ShapesOfRanks(family)) shapes.push_back(shape);
    }
    const auto expected = recorded[family]["losses"].get<std::vector<double>>();
    for (const Shape& shape : shapes) ExpectFollows(*golden, shape, expected, family);
  }
}

struct Kind {
  std::string name;
  uint32_t data = 1, tensor = 1, pipeline = 1, context = 1, zero = 0;
  std::string schedule = "1f1b", recompute = "none", context_type = "ring";
  bool sequence_parallel = false;
};

v1::Layout LayoutOfKind(const Kind& kind) {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batch(1);
  layout.set_micro_batches(4 / kind.data);
  layout.set_data_parallel(kind.data);
  layout.set_tensor_parallel(kind.tensor);
  layout.set_pipeline_parallel(kind.pipeline);
  layout.set_context_parallel(kind.context);
  layout.set_ranks(kind.data * kind.tensor * kind.pipeline * kind.context);
  layout.set_zero_stage(kind.zero);
  layout.set_schedule(kind.schedule);
  const bool chunks = kind.schedule == "breadth_first" || TwoChunksByDefault(kind.schedule);
  layout.set_interleave(chunks ? 2 : 1);
  layout.set_recompute(kind.recompute);
  layout.set_context_type(kind.context_type);
  layout.set_sequence_parallel(kind.sequence_parallel);
  return layout;
}

// Four tensor-parallel ranks share two heads of keys of llama's.
const std::vector<Kind> kKinds = {
    {.name = "gpipe", .pipeline = 2, .schedule = "gpipe"},
    {.name = "interleaved", .pipeline = 2, .schedule = "interleaved"},
    {.name = "zb-h1", .pipeline = 2, .schedule = "zb-h1"},
    {.name = "zbv", .pipeline = 2, .schedule = "zbv", .recompute = "selective"},
    {.name = "breadth first", .pipeline = 2, .schedule = "breadth_first"},
    {.name = "shared keys", .tensor = 4},
    {.name = "sequence parallel", .tensor = 2, .recompute = "selective", .sequence_parallel = true},
    {.name = "shared keys, sequence parallel",
     .tensor = 4,
     .recompute = "block",
     .sequence_parallel = true},
    {.name = "ulysses", .context = 2, .context_type = "ulysses"},
    {.name = "all", .data = 2, .tensor = 2, .pipeline = 2, .zero = 1, .sequence_parallel = true},
    {.name = "all sharded", .data = 2, .tensor = 4, .zero = 3, .recompute = "selective"},
};

// Losses come near enough that a gradient summed once too often, or not at all, shows in the second
// step.
void ExpectEveryKindDoesAsOneRank(const JobData& data, const std::string& what) {
  constexpr int64_t kSteps = 6;
  const JobResult one = TrainLayout(data, LayoutOfKind({}), kSteps, kInTurns);
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05) << what;
  for (const Kind& kind : kKinds) {
    const JobResult result = TrainLayout(data, LayoutOfKind(kind), kSteps, kInTurns);
    ASSERT_EQ(result.losses.size(), one.losses.size()) << what << ", " << kind.name;
    for (size_t i = 0; i < one.losses.size(); ++i) {
      const std::string where = absl::StrCat(what, ", ", kind.name, ", step ", i);
      EXPECT_NEAR(result.losses[i], one.losses[i], 2e-5 * one.losses[i]) << where;
      // Adam divides what is nearly zero, so that rounding grows from step to step.
      EXPECT_NEAR(result.grad_norms[i], one.grad_norms[i],
                  (i == 0 ? 2e-5 : 2e-3) * one.grad_norms[i])
          << where;
    }
  }
}

JobData SmallJob(const std::string& family) {
  JobData data = RandomJob(MatrixModel(family), /*rows=*/4, /*length=*/16);
  data.train.mutable_optimizer()->set_lr(1e-2);
  return data;
}

TEST(EveryKindTest, AdaptersTrainAsOnOneRank) {
  for (const std::string family : {"gpt2", "llama"}) {
    JobData data = SmallJob(family);
    AddAdapters({.rank = 4, .scale = 2, .targets = {"all-linear"}}, &data);
    ExpectEveryKindDoesAsOneRank(data, family);
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
