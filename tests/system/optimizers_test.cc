// The rules of optimizers: each follows the implementation that others use
// (tests/golden/pytorch/make_optimizers.py), and who holds its moments, where and how, changes
// nothing but rounding.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/layout/formats.h"
#include "kernels/optimizer_rule.h"
#include "tests/system/numerics_job.h"
#include "tests/system/text_job.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

v1::Layout WithRule(v1::Layout layout, const kernels::OptimizerRow& rule) {
  layout.set_optimizer(std::string(rule.name));
  return layout;
}

void SetMomentum(const kernels::OptimizerRow& rule, v1::OptimizerSpec* optimizer) {
  if (!rule.reads_betas) optimizer->set_momentum(0.9);
}

// One number, or a pair of which the second is of errors or of the least scale.
void SetEpsilons(const Json& arguments, v1::OptimizerSpec* optimizer) {
  const Json eps = arguments.value("eps", Json(0.0));
  optimizer->set_epsilon(eps.is_array() ? eps[0] : eps);
  if (!eps.is_array()) return;
  optimizer->set_least_scale(eps[1]);
  optimizer->set_error_epsilon(eps[1]);
  optimizer->set_clip_threshold(arguments["clip_threshold"]);
  optimizer->set_scale_parameter(arguments.value("scale_parameter", false));
  optimizer->set_relative_step(arguments.value("relative_step", false));
  optimizer->set_beta2_decay(arguments.value("decay_rate", 0.0));
  const Json beta1 = arguments.value("beta1", Json());
  optimizer->set_beta1(beta1.is_null() ? 0.0 : beta1.get<double>());
}

// What the classes call their arguments.
v1::TrainSpec TrainOf(const Json& recorded) {
  const Json& arguments = recorded["arguments"];
  v1::TrainSpec train;
  train.set_steps(static_cast<int64_t>(recorded["llama"]["losses"].size()));
  train.set_clip_grad_norm(recorded["clip_grad_norm"]);
  train.mutable_schedule()->set_name("constant");
  v1::OptimizerSpec* optimizer = train.mutable_optimizer();
  if (arguments["lr"].is_number()) optimizer->set_lr(arguments["lr"]);
  optimizer->set_weight_decay(arguments["weight_decay"]);
  optimizer->set_momentum(arguments.value("momentum", 0.0));
  SetEpsilons(arguments, optimizer);
  optimizer->set_ns_steps(arguments.value("ns_steps", 0));
  optimizer->set_adjust_lr(arguments.value("adjust_lr_fn", ""));
  if (arguments.contains("betas")) {
    optimizer->set_beta1(arguments["betas"][0]);
    optimizer->set_beta2(arguments["betas"][1]);
    if (arguments["betas"].size() > 2) optimizer->set_beta3(arguments["betas"][2]);
  }
  return train;
}

class RuleTest : public testing::TestWithParam<kernels::OptimizerRow> {};

INSTANTIATE_TEST_SUITE_P(Rules, RuleTest, testing::ValuesIn(kernels::kOptimizerRows),
                         [](const auto& info) { return std::string(info.param.name); });

// Of rules whose state may be in pieces: what muon_test.cc and factored_test.cc have not.
class ElementRuleTest : public RuleTest {};

std::vector<kernels::OptimizerRow> RulesOfElements() {
  std::vector<kernels::OptimizerRow> rules;
  std::copy_if(std::begin(kernels::kOptimizerRows), std::end(kernels::kOptimizerRows),
               std::back_inserter(rules),
               [](const auto& row) { return !row.whole_matrix && !row.factored; });
  return rules;
}

INSTANTIATE_TEST_SUITE_P(Rules, ElementRuleTest, testing::ValuesIn(RulesOfElements()),
                         [](const auto& info) { return std::string(info.param.name); });

// `name`: of the recording.
void ExpectTwentySteps(const kernels::OptimizerRow& rule, const std::string& name) {
  std::ifstream file(kFolder + "/optimizers.json");
  const Json recorded = Json::parse(file)[name];
  for (const std::string family : {"gpt2", "llama"}) {
    auto golden = ReadGolden(kFolder + "/" + family);
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden->train = TrainOf(recorded);
    const auto expected = recorded[family]["losses"].get<std::vector<double>>();
    for (const uint32_t ranks : {1u, 2u}) {
      v1::Layout layout = WithRule(LayoutOf({.ranks = ranks, .micro_batch = 2 / ranks}), rule);
      layout.set_zero_stage(ranks - 1);
      const JobResult result =
          TrainLayout(*golden, layout, static_cast<int64_t>(expected.size()), kInTurns);
      ASSERT_EQ(result.losses.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(result.losses[i], expected[i], 1e-5 * expected[i])
            << name << ": " << family << " on " << ranks << ", step " << i;
    }
  }
}

TEST_P(RuleTest, TwentyStepsFollowTheReference) {
  ExpectTwentySteps(GetParam(), std::string(GetParam().name));
}

// With a moment, with relative steps, and without clipping, as soon as a gradient is there:
// AdaLomo.
TEST(AdafactorTest, TwentyStepsOfItsKindsFollowTheReference) {
  for (const char* name : {"adafactor.moment", "adafactor.relative", "adafactor.adalomo"})
    ExpectTwentySteps(kernels::RowOf(kernels::OptimizerRule::kAdafactor), name);
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
  EXPECT_EQ(a.first_moment, b.first_moment) << what;
  EXPECT_EQ(a.second_moment, b.second_moment) << what;
}

// One micro-batch a rank and no clipping: what is summed is summed in one order.
TEST_P(ElementRuleTest, ShardsAreUpdatedLikeWholeWeights) {
  constexpr int64_t kSteps = 4;
  JobData data = TextJob("llama", /*rows=*/4);
  data.train.set_clip_grad_norm(0);
  SetMomentum(GetParam(), data.train.mutable_optimizer());
  for (const char* format : {"f32", "bf16", "int8"}) {
    if (GetParam().moments == 0 && format != std::string("f32")) continue;
    v1::Layout layout = WithRule(MatrixLayout(), GetParam());
    layout.set_micro_batches(1);
    layout.set_moments_format(format);
    layout.set_data_parallel(2);
    const JobResult whole = TrainLayout(data, layout, kSteps, kInTurns);
    for (const uint32_t zero : {1, 2, 3}) {
      layout.set_zero_stage(zero);
      ExpectSame(TrainLayout(data, layout, kSteps), whole, absl::StrCat(format, " zero ", zero));
    }
  }
}

// The optimizer's states in shares on all tiers, weights with them or not.
TEST_P(ElementRuleTest, TheHostUpdatesLikeTheDevice) {
  constexpr int64_t kSteps = 3;
  JobData data = TextJob("llama", /*rows=*/4);
  SetMomentum(GetParam(), data.train.mutable_optimizer());
  for (const bool stochastic : {false, true}) {
    v1::Layout layout = WithRule(MatrixLayout(), GetParam());
    layout.set_micro_batches(2);
    layout.set_chunk_bytes(4096);
    layout.set_precision(stochastic ? "bf16" : "fp32");
    layout.set_stochastic_rounding(stochastic);
    const JobResult resident = TrainLayout(data, layout, kSteps);
    for (const double nvme : {0.0, 0.5}) {
      for (const bool weights : {false, true}) {
        v1::Layout away = layout;
        v1::Offload* offload = away.mutable_offload();
        for (v1::TierShares* shares : {offload->mutable_parameter(), offload->mutable_gradient(),
                                       offload->mutable_activation()}) {
          shares->set_device(1);
        }
        offload->mutable_optimizer()->set_device(0);
        offload->mutable_optimizer()->set_host(1 - nvme);
        offload->mutable_optimizer()->set_nvme(nvme);
        if (weights) *offload->mutable_parameter() = offload->optimizer();
        ExpectSame(TrainLayout(data, away, kSteps), resident,
                   absl::StrCat(stochastic ? "bf16" : "f32", " weights, nvme ", nvme,
                                weights ? ", weights too" : ""));
      }
    }
  }
}

// Of matrices, in bytes a parameter.
TEST_P(ElementRuleTest, MomentsTakeTheBytesOfTheTable) {
  const JobData data = TextJob("llama", /*rows=*/4);
  v1::Layout layout = WithRule(MatrixLayout(), GetParam());
  layout.set_micro_batches(2);
  const JobResult result = TrainLayout(data, layout, 1);
  int64_t weights = 0, moments = 0;
  for (const v1::Buffer& buffer : result.programs[0].buffers()) {
    if (buffer.lifetime() != v1::PERSISTENT) continue;
    if (buffer.class_() == v1::OPTIMIZER) moments += buffer.bytes();
    if (buffer.name().starts_with("weights.")) weights += buffer.bytes();
  }
  EXPECT_GT(weights, 0);
  EXPECT_EQ(moments, GetParam().moments * weights);
}

}  // namespace
}  // namespace terrace
