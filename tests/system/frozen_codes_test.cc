// Frozen weights that rest in blocks (formats.frozen): a step computes with what their codes are
// worth and with nothing else, on every kind of layout; every rank's codes are the same ones.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/model/lora.h"
#include "kernels/block_codes.h"
#include "tests/system/layout_data.h"
#include "tests/system/numerics_job.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 4;
constexpr const char* kFormats[] = {"nf4", "int8", "fp8"};

void AddGroup(const char* match, bool frozen, v1::OptimizerSpec* optimizer) {
  v1::ParameterGroup* group = optimizer->add_groups();
  group->set_match(match);
  group->set_lr_scale(1);
  group->set_frozen(frozen);
}

// All matrices of layers are frozen; blocks of 64 and of 128 are whole in their rows, also in those
// of one of two ranks. Gradients are not clipped: the order in which their norm is summed does not
// matter.
JobData DataOf(const std::string& family) {
  const TinySizes sizes = {.hidden = 256, .intermediate = 256, .sequence = 16};
  JobData data = RandomJob(TinyModel(family, sizes), /*rows=*/8, sizes.sequence);
  data.train.set_clip_grad_norm(0);
  v1::OptimizerSpec* optimizer = data.train.mutable_optimizer();
  AddGroup(family == "gpt2" ? "*.h.*.weight" : "*layers.*proj.weight", true, optimizer);
  for (const char* vectors : {"*norm*", "*ln_*"}) AddGroup(vectors, false, optimizer);
  return data;
}

v1::Layout Plain(const std::string& frozen = "nf4") {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(2);
  layout.set_frozen_format(frozen);
  return layout;
}

v1::Layout With(const std::function<void(v1::Layout*)>& change) {
  v1::Layout layout = Plain();
  change(&layout);
  return layout;
}

// Of as many rows a step as one rank has in two micro-batches.
v1::Layout Zero(uint32_t stage) {
  return With([stage](v1::Layout* l) {
    l->set_data_parallel(2), l->set_zero_stage(stage), l->set_micro_batches(1);
  });
}

// QLoRA: the same base beside adapters.
JobData AdaptedDataOf(const std::string& family) {
  const TinySizes sizes = {.hidden = 256, .intermediate = 256, .sequence = 16};
  ModelConfig config = TinyModel(family, sizes).config;
  config.lora = {.rank = 4, .scale = 0.5, .targets = {"all-linear"}};
  return RandomJob(BuildModel(config), /*rows=*/8, sizes.sequence);
}

bool RestsAsCodes(const Tensor& tensor) {
  return tensor.layer >= 0 && tensor.shape.size() == 2 && !IsAdapter(tensor.role);
}

// The data with what codes of such blocks are worth in place of the frozen weights.
JobData Decoded(JobData data, const std::string& format, int64_t block) {
  const kernels::Format row = format == "nf4"   ? kernels::Format::kNF4
                              : format == "fp8" ? kernels::Format::kFP8
                                                : kernels::Format::kInt8Linear;
  for (const Tensor& tensor : data.model.tensors) {
    if (!RestsAsCodes(tensor)) continue;
    std::vector<float>& values = data.weights.at(tensor.name);
    for (size_t begin = 0; begin < values.size(); begin += block) {
      uint32_t largest = 0;
      for (int64_t i = 0; i < block; ++i)
        largest = kernels::LargerMagnitude(largest, values[begin + i]);
      const kernels::BlockScale scale = kernels::ScaleOfBlock(largest, row);
      for (int64_t i = 0; i < block; ++i) {
        float& value = values[begin + i];
        value =
            kernels::BlockNumber(kernels::BlockCode(value * scale.inverse, row), row) * scale.scale;
      }
    }
  }
  return data;
}

TEST(FrozenCodesTest, AStepComputesWithWhatTheCodesAreWorth) {
  for (const std::string family : {"gpt2", "llama", "qwen3", "gpt2 adapted", "llama adapted"}) {
    const bool adapted = absl::EndsWith(family, "adapted");
    const JobData data =
        adapted ? AdaptedDataOf(family.substr(0, family.find(' '))) : DataOf(family);
    for (const std::string format : kFormats) {
      const JobData decoded = Decoded(data, format, format == "nf4" ? 64 : 128);
      for (const char* precision : {"fp32", "bf16"}) {
        v1::Layout layout = Plain(format);
        layout.set_precision(precision);
        if (layout.precision() == "bf16") layout.set_parameter_format("bf16");
        const JobResult codes = TrainLayout(data, layout, kSteps, kInTurns);
        layout.clear_frozen_format();
        const JobResult numbers = TrainLayout(decoded, layout, kSteps, kInTurns);
        ASSERT_EQ(codes.losses.size(), static_cast<size_t>(kSteps));
        EXPECT_EQ(codes.losses, numbers.losses) << family << " " << format << " " << precision;
        EXPECT_NE(codes.losses.front(), codes.losses.back());
        for (const auto& [name, values] : numbers.first_moment)
          EXPECT_TRUE(codes.first_moment.at(name) == values) << name;
      }
    }
  }
}

struct Twin {
  std::string name;
  v1::Layout layout;
  v1::Layout of;  // whose numbers it has to the bit
};

std::vector<Twin> Twins() {
  std::vector<Twin> twins;
  for (const char* recompute : {"selective", "block", "full"}) {
    twins.push_back(
        {recompute, With([&](v1::Layout* l) { l->set_recompute(recompute); }), Plain()});
  }
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    twins.push_back({schedule, With([&](v1::Layout* l) {
                       l->set_pipeline_parallel(2), l->set_schedule(schedule);
                     }),
                     Plain()});
  }
  for (const uint32_t stage : {2, 3})
    twins.push_back({absl::StrCat("zero ", stage), Zero(stage), Zero(1)});
  const auto offload = [](v1::Layout* l, v1::Tier tier) {
    l->set_chunk_bytes(4096);
    PutOn(tier, l->mutable_offload()->mutable_parameter());
    PutOn(tier, l->mutable_offload()->mutable_optimizer());
    PutOn(v1::DEVICE, l->mutable_offload()->mutable_gradient());
    PutOn(v1::DEVICE, l->mutable_offload()->mutable_activation());
  };
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    twins.push_back(
        {absl::StrCat("tier ", tier), With([&](v1::Layout* l) { offload(l, tier); }), Plain()});
    v1::Layout sharded = Zero(3);
    offload(&sharded, tier);
    twins.push_back({absl::StrCat("zero 3, tier ", tier), sharded, Zero(1)});
  }
  return twins;
}

TEST(FrozenCodesTest, LayoutsChangeNoBit) {
  const JobData data = DataOf("llama");
  for (const Twin& twin : Twins()) {
    const JobResult a = TrainLayout(data, twin.layout, kSteps),
                    b = TrainLayout(data, twin.of, kSteps);
    ASSERT_EQ(a.losses.size(), static_cast<size_t>(kSteps)) << twin.name;
    EXPECT_EQ(a.losses, b.losses) << twin.name;
    EXPECT_TRUE(a.weights == b.weights) << twin.name;
  }
}

// Ranks that share products or rows add up in another order; their codes are those of one rank.
TEST(FrozenCodesTest, CodesAreTheSameOnEveryLayout) {
  for (const char* family : {"gpt2", "llama"}) {
    const JobData data = DataOf(family);
    const JobResult one = TrainLayout(data, Plain(), kSteps, kInTurns);
    const auto tensor = [](v1::Layout* l) { l->set_tensor_parallel(2); };
    for (const v1::Layout& layout : {With(tensor), Zero(1)}) {
      const JobResult other = TrainLayout(data, layout, kSteps);
      ASSERT_EQ(other.losses.size(), one.losses.size());
      for (size_t i = 0; i < one.losses.size(); ++i)
        EXPECT_NEAR(other.losses[i], one.losses[i], 1e-5 * one.losses[i]) << family;
      int frozen = 0;
      for (const auto& [name, values] : one.weights) {
        const bool scales = absl::EndsWith(name, ".scales");
        const std::string codes = scales ? name.substr(0, name.rfind('.')) : name;
        if (!one.weights.contains(codes + ".scales")) continue;
        EXPECT_TRUE(other.weights.at(name) == values) << family << " " << name;
        ++frozen;
      }
      EXPECT_EQ(frozen, 2 * 2 * (std::string(family) == "gpt2" ? 4 : 7));
    }
  }
}

// Of bitsandbytes, with its own arithmetic (tests/golden/pytorch/make_frozen_codes.py).
TEST(FrozenCodesTest, TwentyStepsFollowBitsandbytes) {
  const std::string folder = TERRACE_GOLDEN_FOLDER;
  std::ifstream file(folder + "/frozen_codes.json");
  const auto recorded = nlohmann::json::parse(file);
  auto golden = ReadGolden(folder + "/llama");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const auto expected = recorded["losses"].get<std::vector<double>>();
  ASSERT_EQ(expected.size(), 20u);
  v1::TrainSpec train;
  train.set_steps(20);
  train.set_clip_grad_norm(recorded["clip_grad_norm"]);
  train.mutable_schedule()->set_name("constant");
  v1::OptimizerSpec* optimizer = train.mutable_optimizer();
  const auto& arguments = recorded["arguments"];
  optimizer->set_lr(arguments["lr"]);
  optimizer->set_weight_decay(arguments["weight_decay"]);
  optimizer->set_epsilon(arguments["eps"]);
  optimizer->set_beta1(arguments["betas"][0]);
  optimizer->set_beta2(arguments["betas"][1]);
  AddGroup("*.layers.*proj.weight", true, optimizer);
  golden->train = train;
  v1::Layout layout = LayoutOf({});
  layout.set_frozen_format("nf4");
  const JobResult result = TrainLayout(*golden, layout, 20);
  ASSERT_EQ(result.losses.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(result.losses[i], expected[i], 1e-5 * expected[i]) << "step " << i;
}

}  // namespace
}  // namespace terrace
