// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Model Llama() { return TinyModel("llama"); }

v1::ParameterGroup* Add(const std::string& match, double lr_scale, v1::OptimizerSpec* optimizer) {
  v1::ParameterGroup* group = optimizer->add_groups();
  group->set_match(match);
  group->set_lr_scale(lr_scale);
  return group;
}

TensorUpdate Of(const std::string& name, const v1::OptimizerSpec& optimizer) {
  const Model model = Llama();
  for (const Tensor& tensor : model.tensors) {
    if (tensor.name == name) return UpdateOf(optimizer, model.config, tensor);
  }
  ADD_FAILURE() << name;
  return {};
}

v1::OptimizerSpec Optimizer() {
  v1::OptimizerSpec optimizer;
  optimizer.set_weight_decay(0.1);
  return optimizer;
}

TEST(ParameterGroupsTest, WithoutGroupsMatricesDecayAndVectorsDoNot) {
  EXPECT_EQ(Of("model.layers.0.mlp.up_proj.weight", Optimizer()), (TensorUpdate{1, 0.1}));
  EXPECT_EQ(Of("model.norm.weight", Optimizer()), (TensorUpdate{1, 0}));
  EXPECT_THAT(ParameterGroupLines(Optimizer(), Llama()), IsEmpty());
}

TEST(ParameterGroupsTest, TheLastGroupThatMatchesCounts) {
  v1::OptimizerSpec optimizer = Optimizer();
  Add("*.weight", 0.5, &optimizer);
  Add("*norm*", 2, &optimizer)->set_weight_decay(0.03);
  EXPECT_EQ(Of("model.layers.1.mlp.up_proj.weight", optimizer), (TensorUpdate{0.5, 0.1}));
  EXPECT_EQ(Of("model.norm.weight", optimizer), (TensorUpdate{2, 0.03}));
}

TEST(ParameterGroupsTest, RatesFallFromTheHeadToTheEmbedding) {
  v1::OptimizerSpec optimizer = Optimizer();
  optimizer.set_layer_decay(0.5);
  Add("*mlp*", 3, &optimizer);
  EXPECT_EQ(Of("lm_head.weight", optimizer).lr_scale, 1.0);
  EXPECT_EQ(Of("model.norm.weight", optimizer).lr_scale, 1.0);
  EXPECT_EQ(Of("model.layers.1.self_attn.q_proj.weight", optimizer).lr_scale, 0.5);
  EXPECT_EQ(Of("model.layers.0.self_attn.q_proj.weight", optimizer).lr_scale, 0.25);
  EXPECT_EQ(Of("model.layers.0.mlp.down_proj.weight", optimizer).lr_scale, 0.75);
  EXPECT_EQ(Of("model.embed_tokens.weight", optimizer).lr_scale, 0.125);
}

TEST(ParameterGroupsTest, APatternThatMatchesNothingIsAProblem) {
  v1::OptimizerSpec optimizer = Optimizer();
  Add("model.layers.0.mlp.up_project.weight", 0.5, &optimizer);
  Add("*", 0.5, &optimizer);
  EXPECT_THAT(ParameterGroupProblems(optimizer, Llama()),
              ElementsAre("train.optimizer.groups: got 'model.layers.0.mlp.up_project.weight', "
                          "must match a tensor of the model; its names are like "
                          "model.layers.0.mlp.up_proj.weight, and * stands for any text"));
}

TEST(ParameterGroupsTest, TensorsOfOneProductAreUpdatedAlike) {
  v1::OptimizerSpec optimizer = Optimizer();
  Add("*k_proj*", 0.5, &optimizer);
  EXPECT_THAT(ParameterGroupProblems(optimizer, Llama()),
              ElementsAre(HasSubstr("model.layers.0.self_attn.q_proj.weight and "
                                    "model.layers.0.self_attn.k_proj.weight")));
  Add("*[qkv]_proj*", 0.5, &optimizer);
  EXPECT_THAT(ParameterGroupProblems(optimizer, Llama()), IsEmpty());
}

TEST(ParameterGroupsTest, WhatIsFrozenIsNotTrainedAndCountsSo) {
  v1::OptimizerSpec optimizer = Optimizer();
  Add("*", 1, &optimizer)->set_frozen(true);
  EXPECT_THAT(ParameterGroupProblems(optimizer, Llama()),
              ElementsAre(HasSubstr("got every tensor frozen, must leave something to train")));
  Add("model.layers.1.mlp.*", 0.5, &optimizer);
  EXPECT_THAT(ParameterGroupProblems(optimizer, Llama()), IsEmpty());
  EXPECT_TRUE(Of("model.norm.weight", optimizer).frozen);
  EXPECT_EQ(Of("model.layers.1.mlp.up_proj.weight", optimizer), (TensorUpdate{0.5, 0.1}));
  EXPECT_EQ(FrozenParameters(optimizer, Llama()), Llama().Parameters() - 3 * 32 * 48);
  EXPECT_EQ(FirstTrainedLayer(optimizer, Llama()), 1);
  const auto lines = ParameterGroupLines(optimizer, Llama());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].frozen());
  EXPECT_FALSE(lines[1].frozen());
}

TEST(ParameterGroupsTest, TrainingCountsNoGradientsOfWhatIsFrozen) {
  constexpr int64_t kSequence = 16;
  const Model model = Llama();
  const double all = FlopsPerToken(model, kSequence);
  v1::OptimizerSpec optimizer = Optimizer();
  EXPECT_EQ(TrainingFlopsPerToken(optimizer, model, kSequence), all);
  Add("*mlp*", 1, &optimizer)->set_frozen(true);
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(optimizer, model, kSequence), all - 2.0 * 6 * 32 * 48);
  // The head alone: everything else has a forward pass only.
  optimizer.clear_groups();
  Add("*", 1, &optimizer)->set_frozen(true);
  Add("lm_head.weight", 1, &optimizer);
  const double head = 32.0 * model.config.vocabulary;
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(optimizer, model, kSequence),
                   (all - 6 * head) / 3 + 6 * head);
  EXPECT_EQ(FirstTrainedLayer(optimizer, model), model.config.layers);
}

TEST(ParameterGroupsTest, LinesCountEachTensorOnce) {
  v1::OptimizerSpec optimizer = Optimizer();
  optimizer.set_layer_decay(0.5);
  Add("*", 0.5, &optimizer);
  Add("*mlp*", 1, &optimizer);
  const auto lines = ParameterGroupLines(optimizer, Llama());
  ASSERT_EQ(lines.size(), 2u) << "none is of no group";
  EXPECT_EQ(lines[1].match(), "*mlp*");
  EXPECT_EQ(lines[1].tensors(), 6);
  EXPECT_EQ(lines[1].parameters(), 6 * 32 * 48);
  EXPECT_EQ(lines[1].min_lr_scale(), 0.25);
  EXPECT_EQ(lines[1].max_lr_scale(), 0.5);
  EXPECT_EQ(lines[0].parameters() + lines[1].parameters(), Llama().Parameters());
}

}  // namespace
}  // namespace terrace
