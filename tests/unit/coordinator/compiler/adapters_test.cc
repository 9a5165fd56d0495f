// Programs of models with low-rank adapters.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/layout/precision.h"
#include "coordinator/model/lora.h"
#include "proto/check/program_check.h"
#include "proto/program/sequences.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"
#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace {
namespace {

// Of gpt2 and of the other families.
const std::vector<std::vector<std::string>> kTargets = {
    {"all-linear"},
    {"c_attn", "q_proj", "v_proj"},
    {"c_fc", "mlp.c_proj", "v_proj", "down_proj"},
    {"attn.c_proj", "o_proj", "up_proj", "k_proj"},
    {"h.2.mlp.c_fc", "layers.2.self_attn.q_proj", "layers.2.mlp.gate_proj"}};

Model Adapted(std::string_view family, const std::vector<std::string>& targets) {
  ModelConfig config = MatrixModel(family).config;
  config.lora = {.rank = 4, .scale = 0.5, .targets = targets};
  return BuildModel(config);
}

absl::StatusOr<std::vector<v1::Program>> CompileAdapted(const LayoutCase& c,
                                                        const std::vector<std::string>& targets,
                                                        double clip_grad_norm = 1) {
  v1::JobSpec spec = MatrixSpec();
  spec.mutable_train()->set_clip_grad_norm(clip_grad_norm);
  const Model model = Adapted(c.family, targets);
  return Compile({.spec = &spec, .model = &model, .layout = c.layout});
}

TEST(AdaptersTest, EveryCombinationPassesTheChecker) {
  constexpr size_t kEvery = 31;
  int failures = 0;
  size_t index = 0;
  for (LayoutCase c : LayoutMatrix(8, kEvery)) {
    const std::vector<std::string>& targets = kTargets[index % kTargets.size()];
    const bool offloads = index % 3 == 1;
    const double clip = index % 4 == 3 ? 0 : 1;  // where updates may come at once
    if (offloads) PutOn(v1::HOST, c.layout.mutable_offload()->mutable_optimizer());
    if (offloads && c.layout.zero_stage() % 3 == 0)
      PutOn(v1::HOST, c.layout.mutable_offload()->mutable_parameter());
    if (c.layout.precision() == "bf16" && index % 2 == 0) c.layout.set_parameter_format("bf16");
    const std::string what = absl::StrCat(Describe(c), ", targets ", index++ % kTargets.size(),
                                          offloads ? ", offloaded" : "");
    const auto programs = CompileAdapted(c, targets, clip);
    const absl::Status status = programs.ok() ? CheckPrograms(*programs) : programs.status();
    EXPECT_EQ(status, absl::OkStatus()) << what;
    if (!status.ok() && ++failures > 10) FAIL() << "too many";
  }
  EXPECT_GT(index, 50u);
}

// Weights of one layer rest in two types where its products compute in two precisions.
TEST(AdaptersTest, ProductsOfOneLayerInTwoPrecisionsPassTheChecker) {
  for (const uint32_t zero : {0, 1, 3}) {
    for (const char* exact : {"attention", "mlp", "1.mlp"}) {
      LayoutCase c = {"llama", MatrixLayout()};
      c.layout.set_data_parallel(zero == 0 ? 1 : 2);
      c.layout.set_zero_stage(zero);
      v1::JobSpec spec = MatrixSpec();
      spec.mutable_train()->set_precision("bf16");
      v1::PrecisionRule* rule = spec.mutable_train()->add_precision_rules();
      rule->set_where(exact);
      rule->set_precision("fp32");
      const Model model = Adapted("llama", {"all-linear"});
      SetPrecisions(spec.train(), model.config.layers, &c.layout);
      c.layout.set_parameter_format("bf16");
      const auto programs = Compile({.spec = &spec, .model = &model, .layout = c.layout});
      ASSERT_TRUE(programs.ok()) << programs.status();
      EXPECT_EQ(CheckPrograms(*programs), absl::OkStatus()) << exact << ", zero " << zero;
    }
  }
}

// In training, of one micro-batch.
int CountOps(const v1::Program& program, std::string_view text) {
  int count = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (!IsTrain(sequence.name())) continue;
    for (const v1::Instruction& instruction : sequence.instructions())
      count += instruction.text().ends_with(text) ? 1 : 0;
  }
  return count;
}

// A's of q, k and v are one product, and so are those of gate and up.
TEST(AdaptersTest, LayersThatShareTheirInputShareOneProductByA) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_micro_batches(1);
  constexpr int kLayers = 4;
  const v1::Program all = CompileAdapted(c, {"all-linear"}).value()[0];
  EXPECT_EQ(CountOps(all, "lora A"), 4 * kLayers);
  EXPECT_EQ(CountOps(all, "lora B"), 7 * kLayers);
  EXPECT_EQ(CountOps(all, "lora scale"), 4 * kLayers);
  const v1::Program two = CompileAdapted(c, {"q_proj", "v_proj"}).value()[0];
  EXPECT_EQ(CountOps(two, "lora A"), kLayers);
  EXPECT_EQ(CountOps(two, "lora B"), 2 * kLayers);
  // Nothing below the first adapter is differentiated.
  EXPECT_EQ(CountOps(two, "embedding grad"), 0);
}

TEST(AdaptersTest, OnlyAdaptersHaveOptimizerStates) {
  for (const std::string& family : Families()) {
    LayoutCase c = {family, MatrixLayout()};
    const v1::Program program = CompileAdapted(c, {"all-linear"}).value()[0];
    std::set<std::string> weights, moments;
    for (const v1::StateRange& range : program.state()) {
      const bool adapter = absl::StrContains(range.tensor(), "lora_");
      if (range.kind() == v1::WEIGHT && adapter) weights.insert(range.tensor());
      if (range.kind() == v1::WEIGHT) continue;
      EXPECT_TRUE(adapter) << range.tensor();
      moments.insert(range.tensor());
    }
    EXPECT_FALSE(weights.empty());
    EXPECT_EQ(weights, moments) << family;
  }
}

}  // namespace
}  // namespace terrace
