// Adafactor and CAME, which update each tensor as a whole and keep means of rows and columns: every
// layout that they allow takes the steps of one rank, with adapters and formats. That these are the
// references' steps shows optimizers_test.cc.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/layout_data.h"
#include "tests/system/recorded_steps.h"
#include "tests/system/text_job.h"
#include "tests/unit/coordinator/compiler/factored_jobs.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 6;

struct Rule {
  std::string name;
  double beta1 = 0;
};
const Rule kRules[] = {{"adafactor", 0}, {"adafactor", 0.9}, {"came", 0.9}};

JobData FactoredJob(const Rule& rule, const std::string& family, int64_t layers = 4) {
  JobData data = TextJob(family, /*rows=*/4, layers);
  SetFactored(rule.name, rule.beta1, data.train.mutable_optimizer());
  return data;
}

v1::Layout FactoredLayout(const Rule& rule) {
  v1::Layout layout = MatrixLayout();
  layout.set_optimizer(rule.name);
  layout.set_micro_batches(2);
  return layout;
}

struct Kind {
  std::string name;
  std::function<void(v1::Layout*)> change;
};

void Pipeline(const char* schedule, uint32_t interleave, v1::Layout* layout) {
  layout->set_pipeline_parallel(2);
  layout->set_schedule(schedule);
  layout->set_interleave(interleave);
}

void Zero(uint32_t stage, uint32_t ranks, v1::Layout* layout) {
  layout->set_zero_stage(stage);
  layout->set_data_parallel(ranks);
  layout->set_micro_batch(1);
  layout->set_micro_batches(4 / ranks);
}

std::vector<Kind> Kinds() {
  return {
      {"data",
       [](v1::Layout* layout) {
         layout->set_data_parallel(2);
         layout->set_micro_batches(1);
       }},
      {"context", [](v1::Layout* layout) { layout->set_context_parallel(2); }},
      {"gpipe", [](v1::Layout* layout) { Pipeline("gpipe", 1, layout); }},
      {"1f1b", [](v1::Layout* layout) { Pipeline("1f1b", 1, layout); }},
      {"interleaved", [](v1::Layout* layout) { Pipeline("interleaved", 2, layout); }},
      {"breadth_first", [](v1::Layout* layout) { Pipeline("breadth_first", 2, layout); }},
      {"zb_h1", [](v1::Layout* layout) { Pipeline("zb-h1", 1, layout); }},
      {"zbv", [](v1::Layout* layout) { Pipeline("zbv", 2, layout); }},
      {"data_and_pipeline",
       [](v1::Layout* layout) {
         Pipeline("1f1b", 1, layout);
         layout->set_data_parallel(2);
         layout->set_micro_batches(1);
       }},
      {"zero1", [](v1::Layout* layout) { Zero(1, 2, layout); }},
      {"zero1_in_two_shards",
       [](v1::Layout* layout) {
         Zero(1, 4, layout);
         layout->set_shard_size(2);
       }},
      {"zero2_and_pipeline",
       [](v1::Layout* layout) {
         Pipeline("1f1b", 1, layout);
         Zero(2, 2, layout);
       }},
      {"recompute", [](v1::Layout* layout) { layout->set_recompute("full"); }},
      {"activations_away", [](v1::Layout* layout) {
         v1::Offload* offload = layout->mutable_offload();
         for (v1::TierShares* shares : {offload->mutable_parameter(), offload->mutable_gradient(),
                                        offload->mutable_optimizer()})
           shares->set_device(1);
         offload->mutable_activation()->set_device(0);
         offload->mutable_activation()->set_host(1);
         layout->set_chunk_bytes(4096);
       }}};
}

void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected,
                const std::string& what) {
  ASSERT_EQ(losses.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << what << ", step " << i;
}

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class FactoredLayoutTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, FactoredLayoutTest, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

// The embeddings of gpt2 and qwen3 are their heads too: with two stages both update a copy.
TEST_P(FactoredLayoutTest, TakesTheStepsOfOneRank) {
  for (const Rule& rule : kRules) {
    for (const std::string family : {"gpt2", "llama", "qwen3"}) {
      const JobData data = FactoredJob(rule, family);
      const JobResult one = TrainLayout(data, FactoredLayout(rule), kSteps);
      v1::Layout layout = FactoredLayout(rule);
      GetParam().change(&layout);
      const JobResult result = TrainLayout(data, layout, kSteps);
      ExpectNear(result.losses, one.losses, absl::StrCat(rule.name, " ", rule.beta1, " ", family));
    }
  }
}

// Of three layers one of four ranks gets none. With parts of layers updated apart, each rule has
// units of its own.
TEST(FactoredTest, PaddingAndGroupsTakeTheStepsOfOneRank) {
  for (const Rule& rule : kRules) {
    JobData data = FactoredJob(rule, "qwen3", /*layers=*/3);
    v1::ParameterGroup* group = data.train.mutable_optimizer()->add_groups();
    group->set_match("*.layers.2.mlp.*");
    group->set_lr_scale(0.5);
    const JobResult one = TrainLayout(data, FactoredLayout(rule), kSteps);
    v1::Layout layout = FactoredLayout(rule);
    Zero(2, 4, &layout);
    ExpectNear(TrainLayout(data, layout, kSteps).losses, one.losses, rule.name);
  }
}

TEST(FactoredTest, UpdatesAtOnceChangeNoBit) {
  for (const Rule& rule : kRules) {
    JobData data = FactoredJob(rule, "llama");
    data.train.set_clip_grad_norm(0);
    v1::Layout layout = FactoredLayout(rule);
    layout.set_micro_batch(4);
    layout.set_micro_batches(1);
    const JobResult at_once = TrainLayout(data, layout, kSteps);
    data.train.set_clip_grad_norm(1e9);
    const JobResult at_the_end = TrainLayout(data, layout, kSteps);
    EXPECT_EQ(at_once.losses.size(), static_cast<size_t>(kSteps));
    EXPECT_EQ(at_once.losses, at_the_end.losses) << rule.name;
    EXPECT_EQ(at_once.weights, at_the_end.weights) << rule.name;
  }
}

// Beside its first moment a matrix has means of its rows and columns, a vector one of each element.
TEST(FactoredTest, AVectorAloneKeepsASecondMoment) {
  for (const Rule& rule : kRules) {
    JobData data = FactoredJob(rule, "llama");
    const JobResult result = TrainLayout(data, FactoredLayout(rule), 1);
    for (const Tensor& tensor : data.model.tensors) {
      EXPECT_EQ(result.first_moment.contains(tensor.name), rule.beta1 > 0) << tensor.name;
      EXPECT_EQ(result.second_moment.contains(tensor.name), tensor.shape.size() < 2) << tensor.name;
    }
    int64_t means = 0;
    for (const v1::Buffer& buffer : result.programs[0].buffers())
      means += buffer.name().starts_with("row_") || buffer.name().starts_with("column_") ? 1 : 0;
    EXPECT_GT(means, 0);
  }
}

TEST(FactoredTest, AdaptersAreMatricesToo) {
  for (const Rule& rule : kRules) {
    JobData data = FactoredJob(rule, "llama");
    AddAdapters({.rank = 4, .scale = 2, .targets = {"all-linear"}}, &data);
    const JobResult one = TrainLayout(data, FactoredLayout(rule), kSteps);
    ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
    EXPECT_LT(one.losses.back(), one.losses.front()) << rule.name;
    v1::Layout layout = FactoredLayout(rule);
    Pipeline("1f1b", 1, &layout);
    ExpectNear(TrainLayout(data, layout, kSteps).losses, one.losses, "adapters");
  }
}

// bf16 has 8 bits: what is rounded to it changes a step by less than a hundredth.
TEST(FactoredTest, FormatsStayNearF32) {
  for (const Rule& rule : kRules) {
    const JobData data = FactoredJob(rule, "llama");
    const JobResult exact = TrainLayout(data, FactoredLayout(rule), kSteps);
    v1::Layout moments = FactoredLayout(rule), products = moments, gradients = moments;
    moments.set_moments_format("bf16");
    products.set_precision("bf16");
    gradients.set_precision("bf16");
    gradients.set_gradient_format("bf16");
    v1::Layout shared = gradients;
    Zero(1, 2, &shared);
    for (const v1::Layout& layout : {moments, products, gradients, shared}) {
      if (layout.moments_format() == "bf16" && rule.beta1 == 0) continue;
      const JobResult result = TrainLayout(data, layout, kSteps);
      ASSERT_EQ(result.losses.size(), exact.losses.size());
      EXPECT_NE(result.losses, exact.losses);
      for (size_t i = 0; i < exact.losses.size(); ++i)
        EXPECT_NEAR(result.losses[i], exact.losses[i], 2e-2 * exact.losses[i])
            << rule.name << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace terrace
