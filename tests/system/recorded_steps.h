// Steps that PyTorch took, recorded as JSON (tests/golden/pytorch/make_recipes.py, make_lora.py,
// make_dropout.py, make_documents.py), and the kinds of layouts on which jobs follow them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/model/lora.h"
#include "tests/system/layout_data.h"
#include "tests/system/numerics_job.h"

namespace terrace {

// The order of groups counts.
inline v1::TrainSpec TrainOf(const nlohmann::ordered_json& recorded) {
  const auto& arguments = recorded["arguments"];
  const auto& recipe = recorded["recipe"];
  v1::TrainSpec train;
  const auto& any = recorded.contains("llama") ? recorded["llama"] : recorded["gpt2"];
  train.set_steps(static_cast<int64_t>(any["losses"].size()));
  train.set_seed(recipe.value("seed", 0));
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

inline LoraConfig LoraOf(const nlohmann::ordered_json& recipe, const std::string& family) {
  LoraConfig lora = {.rank = recipe["rank"]};
  const auto rank = static_cast<double>(lora.rank);
  lora.scale =
      recipe["alpha"].get<double>() / (recipe.value("rslora", false) ? std::sqrt(rank) : rank);
  const auto& targets = recipe["targets"];
  if (targets.is_string()) {
    lora.targets = {targets};
  } else {
    lora.targets = targets[family].get<std::vector<std::string>>();
  }
  return lora;
}

// As make_lora.py lets adapters begin.
inline void AddAdapters(const LoraConfig& lora, JobData* data) {
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

struct Shape {
  std::string name;
  uint32_t data = 1, tensor = 1, pipeline = 1, zero = 0, context = 1;
  bool offload = false;  // of the optimizer's states
};

inline v1::Layout LayoutOfShape(const Shape& shape) {
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

// All but the one rank.
inline std::vector<Shape> ShapesOfRanks(const std::string& family) {
  const uint32_t heads_over = family == "gpt2" ? 3 : 2;
  return {{.name = "zero 1", .data = 2, .zero = 1}, {.name = "zero 2", .data = 2, .zero = 2},
          {.name = "zero 3", .data = 2, .zero = 3}, {.name = "tensor", .tensor = heads_over},
          {.name = "pipeline", .pipeline = 2},      {.name = "context", .context = 2},
          {.name = "offload", .offload = true}};
}

inline void ExpectFollows(const Golden& golden, const Shape& shape,
                          const std::vector<double>& expected, const std::string& what) {
  const JobResult result =
      TrainLayout(golden, LayoutOfShape(shape), static_cast<int64_t>(expected.size()));
  ASSERT_EQ(result.losses.size(), expected.size()) << what << ", " << shape.name;
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(result.losses[i], expected[i], 1e-5 * expected[i])
        << what << ", " << shape.name << ", step " << i;
}

}  // namespace terrace
