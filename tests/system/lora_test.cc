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

}  // namespace
}  // namespace terrace
