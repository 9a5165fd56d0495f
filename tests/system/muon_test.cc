// Muon, which updates whole matrices and leaves the rest to AdamW: every layout that it allows
// takes the steps of one rank, with groups, adapters and formats. That these are the reference's
// steps shows optimizers_test.cc.
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

namespace terrace {
namespace {

constexpr int64_t kSteps = 6;

JobData MuonJob(const std::string& family, int64_t layers = 4) {
  JobData data = TextJob(family, /*rows=*/4, layers);
  v1::OptimizerSpec* optimizer = data.train.mutable_optimizer();
  optimizer->set_momentum(0.95);
  optimizer->set_ns_steps(5);
  optimizer->set_adjust_lr("match_rms_adamw");
  return data;
}

v1::Layout MuonLayout() {
  v1::Layout layout = MatrixLayout();
  layout.set_optimizer("muon");
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
  layout->set_micro_batch(ranks > 2 ? 1 : layout->micro_batch());
  layout->set_micro_batches(4 / ranks / layout->micro_batch());
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
      {"zb_h1", [](v1::Layout* layout) { Pipeline("zb-h1", 1, layout); }},
      {"zbv", [](v1::Layout* layout) { Pipeline("zbv", 2, layout); }},
      {"data_and_pipeline",
       [](v1::Layout* layout) {
         Pipeline("1f1b", 1, layout);
         layout->set_data_parallel(2);
         layout->set_micro_batches(1);
       }},
      {"zero1", [](v1::Layout* layout) { Zero(1, 2, layout); }},
      {"zero2", [](v1::Layout* layout) { Zero(2, 2, layout); }},
      {"zero1_of_four", [](v1::Layout* layout) { Zero(1, 4, layout); }},
      {"zero1_in_two_shards",
       [](v1::Layout* layout) {
         Zero(1, 4, layout);
         layout->set_shard_size(2);
       }},
      {"zero1_and_context",
       [](v1::Layout* layout) {
         Zero(1, 2, layout);
         layout->set_context_parallel(2);
       }},
      {"zero2_and_interleaved",
       [](v1::Layout* layout) {
         Pipeline("interleaved", 2, layout);
         Zero(2, 2, layout);
       }},
      {"zero2_and_zbv",
       [](v1::Layout* layout) {
         Pipeline("zbv", 2, layout);
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

class MuonLayoutTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, MuonLayoutTest, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(MuonLayoutTest, TakesTheStepsOfOneRank) {
  for (const std::string family : {"gpt2", "llama"}) {
    const JobData data = MuonJob(family);
    const JobResult one = TrainLayout(data, MuonLayout(), kSteps);
    v1::Layout layout = MuonLayout();
    GetParam().change(&layout);
    const JobResult result = TrainLayout(data, layout, kSteps);
    ExpectNear(result.losses, one.losses, family);
  }
}

// Of three layers two ranks have one each and both keep the third; of four ranks one gets none, and
// its padding changes nothing.
TEST(MuonTest, MatricesThatDoNotDivideAreKeptOrPadded) {
  const JobData data = MuonJob("llama", /*layers=*/3);
  const JobResult one = TrainLayout(data, MuonLayout(), kSteps);
  for (const uint32_t stage : {1, 2}) {
    for (const uint32_t ranks : {2, 4}) {
      v1::Layout layout = MuonLayout();
      layout.set_micro_batch(1);
      layout.set_micro_batches(4 / ranks);
      layout.set_data_parallel(ranks);
      layout.set_zero_stage(stage);
      const JobResult result = TrainLayout(data, layout, kSteps);
      ExpectNear(result.losses, one.losses, absl::StrCat(ranks, " ranks, ZeRO ", stage));
      int64_t kept = 0;
      for (const v1::Buffer& buffer : result.programs.at(0).buffers())
        kept += buffer.name().find(".kept") != std::string::npos ? 1 : 0;
      EXPECT_EQ(kept > 0, ranks == 2);
    }
  }
}

// Nothing is left of a step but the weights that it made: clipping, and updates as soon as a
// gradient is final.
TEST(MuonTest, UpdatesAtOnceChangeNoBit) {
  JobData data = MuonJob("llama", /*layers=*/3);
  for (const uint32_t ranks : {1, 2}) {
    data.train.set_clip_grad_norm(0);
    v1::Layout late = MuonLayout();
    late.set_micro_batch(4 / ranks);
    late.set_micro_batches(1);
    late.set_data_parallel(ranks);
    late.set_zero_stage(ranks > 1 ? 1 : 0);
    const JobResult at_once = TrainLayout(data, late, kSteps);
    data.train.set_clip_grad_norm(1e9);
    const JobResult at_the_end = TrainLayout(data, late, kSteps);
    EXPECT_EQ(at_once.losses.size(), static_cast<size_t>(kSteps));
    EXPECT_EQ(at_once.losses, at_the_end.losses);
    EXPECT_EQ(at_once.weights, at_the_end.weights);
  }
}

TEST(MuonTest, MatricesOfLayersKeepOneMomentAndTheRestTwo) {
  JobData data = MuonJob("llama");
  const JobResult result = TrainLayout(data, MuonLayout(), 1);
  for (const Tensor& tensor : data.model.tensors) {
    EXPECT_TRUE(result.first_moment.contains(tensor.name)) << tensor.name;
    const bool matrix = tensor.layer >= 0 && tensor.shape.size() == 2;
    EXPECT_EQ(result.second_moment.contains(tensor.name), !matrix) << tensor.name;
  }
}

// With every matrix given back to it, AdamW alone is left, to the bit.
TEST(MuonTest, GroupsGiveMatricesBackToAdamw) {
  JobData data = MuonJob("llama");
  v1::ParameterGroup* group = data.train.mutable_optimizer()->add_groups();
  group->set_match("*");
  group->set_lr_scale(1);
  group->set_rule("adamw");
  const JobResult muon = TrainLayout(data, MuonLayout(), kSteps);
  data.train.mutable_optimizer()->clear_groups();
  v1::Layout layout = MuonLayout();
  layout.set_optimizer("adamw");
  const JobResult adamw = TrainLayout(data, layout, kSteps);
  EXPECT_EQ(muon.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(muon.losses, adamw.losses);
  EXPECT_EQ(muon.weights, adamw.weights);
}

TEST(MuonTest, SomeMatricesByAdamwTakeTheStepsOfOneRankOnTwoStages) {
  JobData data = MuonJob("llama");
  v1::ParameterGroup* group = data.train.mutable_optimizer()->add_groups();
  group->set_match("*.layers.[02].mlp.*");
  group->set_lr_scale(0.5);
  group->set_rule("adamw");
  const JobResult one = TrainLayout(data, MuonLayout(), kSteps);
  v1::Layout layout = MuonLayout();
  Pipeline("1f1b", 1, &layout);
  ExpectNear(TrainLayout(data, layout, kSteps).losses, one.losses, "groups");
}

TEST(MuonTest, AdaptersAreMatricesToo) {
  JobData data = MuonJob("llama");
  AddAdapters({.rank = 4, .scale = 2, .targets = {"all-linear"}}, &data);
  const JobResult one = TrainLayout(data, MuonLayout(), kSteps);
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(one.losses.back(), one.losses.front());
  v1::Layout layout = MuonLayout();
  Pipeline("1f1b", 1, &layout);
  ExpectNear(TrainLayout(data, layout, kSteps).losses, one.losses, "adapters");
}

// bf16 has 8 bits: moments that are rounded to it change a step by less than a hundredth.
TEST(MuonTest, FormatsOfMomentsAndProductsStayNearF32) {
  const JobData data = MuonJob("llama");
  const JobResult exact = TrainLayout(data, MuonLayout(), kSteps);
  v1::Layout moments = MuonLayout();
  moments.set_moments_format("bf16");
  v1::Layout products = MuonLayout();
  products.set_precision("bf16");
  v1::Layout shared = products;
  Zero(2, 2, &shared);
  shared.set_reduce_format("bf16");
  for (const v1::Layout& layout : {moments, products, shared}) {
    const JobResult result = TrainLayout(data, layout, kSteps);
    ASSERT_EQ(result.losses.size(), exact.losses.size());
    EXPECT_NE(result.losses, exact.losses);
    for (size_t i = 0; i < exact.losses.size(); ++i)
      EXPECT_NEAR(result.losses[i], exact.losses[i], 1e-2 * exact.losses[i]) << "step " << i;
  }
}

}  // namespace
}  // namespace terrace
