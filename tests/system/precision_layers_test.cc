// Products of single layers and modules in a precision of their own. What equals a job of one
// precision has its bits; what does not has the same bits however the job is laid out.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/system/text_job.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 3;
constexpr int kLayers = 4;

// The norm is summed in another order where shards end elsewhere, so it limits nothing.
JobData DataOf(const std::string& family) {
  JobData data = RandomJob(
      TinyModel(
          family,
          {.vocabulary = 331, .hidden = 64, .layers = kLayers, .intermediate = 96, .sequence = 16}),
      /*rows=*/8, /*length=*/16);
  data.train.set_clip_grad_norm(1e30);
  return data;
}

v1::Layout LayoutIn(const std::string& precision, uint32_t zero = 0) {
  v1::Layout layout = MatrixLayout();
  layout.set_precision(precision);
  layout.set_micro_batches(2);
  layout.set_chunk_bytes(3 * 4096);
  if (zero > 0) {
    layout.set_data_parallel(2);
    layout.set_zero_stage(zero);
  }
  return layout;
}

void SetLayers(const std::string& attention, const std::string& mlp, int begin, int end,
               v1::Layout* layout) {
  while (layout->layer_precisions_size() < kLayers) {
    v1::LayerPrecision* layer = layout->add_layer_precisions();
    layer->set_attention(layout->precision());
    layer->set_mlp(layout->precision());
  }
  for (int i = begin; i < end; ++i) {
    layout->mutable_layer_precisions(i)->set_attention(attention);
    layout->mutable_layer_precisions(i)->set_mlp(mlp);
  }
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_TRUE(a.weights == b.weights) << what;
}

// By the role of the weight that a product reads: "layer 1 mlp_down", ...
std::set<std::string> TextsIn(const JobResult& result, v1::MatmulPrecision precision) {
  std::set<std::string> texts;
  for (const v1::Instruction& i : result.programs.at(0).sequences(0).instructions()) {
    const v1::ComputeOp& compute = i.compute();
    const bool has = (compute.has_matmul() && compute.matmul().precision() == precision) ||
                     (compute.has_loss() && compute.loss().precision() == precision);
    if (has) texts.insert(i.text());
  }
  return texts;
}

class PrecisionLayersTest : public testing::TestWithParam<const char*> {
 protected:
  const JobData data_ = DataOf(GetParam());
  const RunOptions threads_ = ThreadsOfOneFamily(GetParam());
};

TEST_P(PrecisionLayersTest, AllLayersInAnotherPrecisionAreAJobInThat) {
  for (const uint32_t zero : {0, 1, 3}) {
    const JobResult bf16 = TrainLayout(data_, LayoutIn("bf16", zero), kSteps, threads_);
    const JobResult fp8 = TrainLayout(data_, LayoutIn("fp8", zero), kSteps, threads_);
    EXPECT_NE(bf16.losses, fp8.losses);
    // The head is in bf16 in both.
    v1::Layout layout = LayoutIn("bf16", zero);
    SetLayers("fp8", "fp8", 0, kLayers, &layout);
    ExpectSame(TrainLayout(data_, layout, kSteps, threads_), fp8, "layers in fp8");
    layout = LayoutIn("fp8", zero);
    SetLayers("bf16", "bf16", 0, kLayers, &layout);
    ExpectSame(TrainLayout(data_, layout, kSteps, threads_), bf16, "layers in bf16");
  }
}

TEST_P(PrecisionLayersTest, AMixtureHasItsBitsInEveryLayout) {
  const auto mixed = [](uint32_t zero) {
    v1::Layout layout = LayoutIn("bf16", zero);
    SetLayers("fp8", "fp32", 1, 3, &layout);
    layout.set_head_precision("fp32");
    return layout;
  };
  const JobResult one = TrainLayout(data_, mixed(0), kSteps, threads_);
  EXPECT_NE(one.losses, TrainLayout(data_, LayoutIn("bf16"), kSteps, threads_).losses);
  for (const char* recompute : {"selective", "block", "full"}) {
    v1::Layout layout = mixed(0);
    layout.set_recompute(recompute);
    ExpectSame(TrainLayout(data_, layout, kSteps, threads_), one, recompute);
  }
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    v1::Layout away = mixed(0);
    PutOn(tier, away.mutable_offload()->mutable_parameter());
    PutOn(tier, away.mutable_offload()->mutable_gradient());
    PutOn(tier, away.mutable_offload()->mutable_optimizer());
    for (const char* format : {"f32", "bf16"}) {
      away.set_parameter_format(format);
      ExpectSame(TrainLayout(data_, away, kSteps, threads_), one,
                 v1::Tier_Name(tier) + " " + format);
    }
  }
  ExpectSame(TrainLayout(data_, mixed(3), kSteps, threads_),
             TrainLayout(data_, mixed(2), kSteps, threads_), "zero 3");
  // A tied table is summed over the stages in another order.
  if (data_.model.config.tied_embeddings) return;
  v1::Layout stages = mixed(0);
  stages.set_pipeline_parallel(2);
  ExpectSame(TrainLayout(data_, stages, kSteps, threads_), one, "two stages");
}

// A row of a table that is rounded when it is read is what a rounded table has there.
TEST_P(PrecisionLayersTest, AnEmbeddingInFp32ChangesNoBit) {
  v1::Layout layout = LayoutIn("bf16", 1);
  const JobResult usual = TrainLayout(data_, layout, kSteps, threads_);
  layout.set_embedding_precision("fp32");
  ExpectSame(TrainLayout(data_, layout, kSteps, threads_), usual, "embedding");
}

TEST_P(PrecisionLayersTest, ProductsSayTheirPrecision) {
  v1::Layout layout = LayoutIn("bf16", 1);
  SetLayers("bf16", "fp8", 2, 3, &layout);
  layout.set_head_precision("fp32");
  const JobResult result = TrainLayout(data_, layout, 1);
  for (const std::string& text : TextsIn(result, v1::MATMUL_FP8)) {
    EXPECT_NE(text.find("mlp"), std::string::npos) << text;
  }
  EXPECT_EQ(TextsIn(result, v1::MATMUL_FP8).empty(), false);
  for (const std::string& text : TextsIn(result, v1::MATMUL_F32)) {
    EXPECT_NE(text.find("lm_head"), std::string::npos) << text;
  }
  EXPECT_EQ(TextsIn(result, v1::MATMUL_F32).empty(), false);
}

INSTANTIATE_TEST_SUITE_P(Families, PrecisionLayersTest, testing::Values("gpt2", "llama", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

// As recipes for 8 bits have it: the first and the last layer in 16.
TEST(PrecisionOfATextTest, TheLossOfATextFallsAsIn16Bits) {
  constexpr int64_t kLong = 80;
  JobData data = TextJob("llama", /*rows=*/16, kLayers);
  data.train.set_steps(kLong);
  const JobResult exact = TrainLayout(data, LayoutIn("bf16"), kLong, kInTurns);
  v1::Layout layout = LayoutIn("fp8");
  SetLayers("bf16", "bf16", 0, 1, &layout);
  SetLayers("bf16", "bf16", kLayers - 1, kLayers, &layout);
  const JobResult mixed = TrainLayout(data, layout, kLong, kInTurns);
  EXPECT_LT(LastLoss(mixed), 0.7 * mixed.losses.front());
  EXPECT_NEAR(LastLoss(mixed), LastLoss(exact), 0.02 * LastLoss(exact));
}

}  // namespace
}  // namespace terrace
