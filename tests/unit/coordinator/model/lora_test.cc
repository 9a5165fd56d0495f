// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "coordinator/model/presets.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelConfig Config(std::string_view preset, LoraConfig lora) {
  ModelConfig config = ParseModelConfig(FindPreset(preset)->config_json, 128).value();
  config.lora = std::move(lora);
  return config;
}

std::vector<std::string> AdapterNames(const Model& model, int64_t layer) {
  std::vector<std::string> names;
  for (const Tensor& tensor : model.tensors) {
    if (tensor.layer == layer && IsAdapter(tensor.role)) names.push_back(tensor.name);
  }
  return names;
}

TEST(LoraTest, AdaptersStandBesideTheLayersThatAreNamed) {
  const Model model =
      BuildModel(Config("qwen3-8b", {.rank = 16, .targets = {"q_proj", "mlp.down_proj"}}));
  EXPECT_THAT(AdapterNames(model, 1), ElementsAre("model.layers.1.self_attn.q_proj.lora_A.weight",
                                                  "model.layers.1.self_attn.q_proj.lora_B.weight",
                                                  "model.layers.1.mlp.down_proj.lora_A.weight",
                                                  "model.layers.1.mlp.down_proj.lora_B.weight"));
  EXPECT_EQ(model.Find(TensorRole::kQLoraA, 1)->shape, (std::vector<int64_t>{16, 4096}));
  EXPECT_EQ(model.Find(TensorRole::kMlpDownLoraA, 1)->shape, (std::vector<int64_t>{16, 12288}));
  EXPECT_EQ(model.Find(TensorRole::kMlpDownLoraB, 1)->shape, (std::vector<int64_t>{4096, 16}));
  EXPECT_EQ(AdapterParameters(model), 36 * 16 * (4096 + 4096 + 12288 + 4096));
  EXPECT_THAT(LoraProblems(model.config), IsEmpty());
}

// Shapes as PEFT has them, whichever way the layer's own weight is stored.
TEST(LoraTest, AllLinearLayersOfGpt2) {
  const Model model = BuildModel(Config("gpt2", {.rank = 8, .targets = {"all-linear"}}));
  EXPECT_EQ(AdapterNames(model, 0).size(), 8u);
  EXPECT_EQ(model.Find(TensorRole::kQkvLoraA, 0)->shape, (std::vector<int64_t>{8, 768}));
  EXPECT_EQ(model.Find(TensorRole::kQkvLoraB, 0)->shape, (std::vector<int64_t>{2304, 8}));
  EXPECT_EQ(model.Find(TensorRole::kMlpDownLoraA, 0)->shape, (std::vector<int64_t>{8, 3072}));
}

// c_proj is the name of two layers of gpt2's.
TEST(LoraTest, ATargetIsAllOfANameOrItsLastParts) {
  const LoraConfig lora = {.rank = 8, .targets = {"attn.c_proj", "fc"}};
  EXPECT_TRUE(HasAdapter(lora, "transformer.h.0.attn.c_proj"));
  EXPECT_FALSE(HasAdapter(lora, "transformer.h.0.mlp.c_proj"));
  EXPECT_FALSE(HasAdapter(lora, "transformer.h.0.mlp.c_fc"));
  EXPECT_FALSE(HasAdapter({.targets = {"all-linear"}}, "transformer.h.0.mlp.c_fc"));
}

TEST(LoraTest, BeginAsTheModelWasTrained) {
  const Model uniform = BuildModel(Config("gpt2", {.rank = 8, .targets = {"c_fc"}}));
  const Tensor& a = *uniform.Find(TensorRole::kMlpUpLoraA, 0);
  EXPECT_EQ(a.init, Init::kUniform);
  EXPECT_NEAR(a.stddev * std::sqrt(3.0), 1 / std::sqrt(768.0), 1e-12);
  EXPECT_EQ(uniform.Find(TensorRole::kMlpUpLoraB, 0)->init, Init::kZeros);
  const Model gaussian =
      BuildModel(Config("gpt2", {.rank = 8, .targets = {"c_fc"}, .gaussian = true}));
  EXPECT_EQ(gaussian.Find(TensorRole::kMlpUpLoraA, 0)->init, Init::kNormal);
  EXPECT_DOUBLE_EQ(gaussian.Find(TensorRole::kMlpUpLoraA, 0)->stddev, 1.0 / 8);
}

TEST(LoraTest, WhatIsWrongIsSaid) {
  EXPECT_THAT(LoraProblems(Config("gpt2", {.rank = 8, .targets = {"c_fcc", "all-linear"}})),
              ElementsAre("model.lora.targets: got 'c_fcc', must name a linear layer of the "
                          "transformer's layers; try c_fc"));
  EXPECT_THAT(LoraProblems(Config("gpt2", {.rank = 800, .targets = {"c_attn"}})),
              ElementsAre(HasSubstr("model.lora.rank: got 800, must be at most 768, the shorter "
                                    "side of transformer.h.0.attn.c_attn.weight")));
}

TEST(LoraTest, RolesLeadBothWays) {
  for (const TensorRole role :
       {TensorRole::kQkv, TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kAttentionOut,
        TensorRole::kMlpUp, TensorRole::kMlpGate, TensorRole::kMlpDown}) {
    EXPECT_EQ(AdaptedRole(LoraA(role)), role);
    EXPECT_EQ(AdaptedRole(LoraB(role)), role);
    EXPECT_EQ(AdaptedRole(role), role);
    EXPECT_TRUE(IsLoraA(LoraA(role)) && !IsLoraB(LoraA(role)) && IsMatrixProduct(LoraA(role)));
    EXPECT_TRUE(IsLoraB(LoraB(role)) && !IsLoraA(LoraB(role)) && !IsAdapter(role));
  }
  EXPECT_FALSE(IsAdapter(TensorRole::kLmHead));
}

}  // namespace
}  // namespace terrace
