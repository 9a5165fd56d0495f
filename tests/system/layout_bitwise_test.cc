// What may not change a single bit: recompute, the order in which a pipeline's stages interleave
// their passes, where ZeRO keeps the states; and what may change it to rounding only.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 2;

// The data of a family of layout_matrix.h; `clip` 0: gradients are never clipped, so that the order
// in which their norm is summed does not matter.
JobData DataOf(const std::string& family, double clip = 1.0) {
  JobData data = RandomJob(MatrixModel(family), /*rows=*/8, /*length=*/16);
  data.train.set_clip_grad_norm(clip);
  return data;
}

// "fp8_bf16" is fp8 with gradients in bf16.
v1::Layout Precision(const std::string& precision) {
  v1::Layout layout = MatrixLayout();
  const size_t end = precision.find('_');
  layout.set_precision(precision.substr(0, end));
  if (end != std::string::npos) layout.set_gradient_format(precision.substr(end + 1));
  layout.set_micro_batches(2);
  return layout;
}

v1::Layout Pipeline(const std::string& schedule, const std::string& precision = "fp32") {
  v1::Layout layout = Precision(precision);
  layout.set_pipeline_parallel(2);
  layout.set_schedule(schedule);
  layout.set_micro_batches(4);
  return layout;
}

v1::Layout Zero(uint32_t stage, uint32_t ranks = 2, uint32_t micro_batches = 1) {
  v1::Layout layout = MatrixLayout();
  layout.set_data_parallel(ranks);
  layout.set_zero_stage(stage);
  layout.set_micro_batches(micro_batches);
  return layout;
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), static_cast<size_t>(kSteps)) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
}

void ExpectClose(const JobResult& a, const JobResult& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size()) << what;
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], 1e-5 * b.losses[i]) << what << " step " << i;
  }
}

class BitwiseTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  std::string family() const { return std::get<0>(GetParam()); }
  std::string precision() const { return std::get<1>(GetParam()); }
  RunOptions threads() const { return ThreadsOfOneFamily(family()); }
};

std::vector<v1::Layout> WithEachRecompute(const v1::Layout& layout) {
  std::vector<v1::Layout> layouts;
  for (const char* recompute : {"selective", "block", "every", "sqrt", "full"}) {
    layouts.push_back(layout);
    layouts.back().set_recompute(recompute);
    layouts.back().set_recompute_every(3);
  }
  layouts.push_back(layout);
  for (const char* policy : {"block", "none", "selective", "block"}) {
    layouts.back().add_recompute_layers(policy);
  }
  return layouts;
}

TEST_P(BitwiseTest, RecomputeChangesNothing) {
  const JobData data = DataOf(family());
  const v1::Layout layout = Precision(precision());
  const JobResult none = TrainLayout(data, layout, kSteps, kInTurns);
  for (const v1::Layout& other : WithEachRecompute(layout)) {
    ExpectSame(TrainLayout(data, other, kSteps, threads()), none,
               other.recompute_layers().empty() ? other.recompute() : "a mix of layers");
  }
}

TEST_P(BitwiseTest, SchedulesThatKeepTheOrderOfMicroBatchesChangeNothing) {
  const JobData data = DataOf(family());
  const JobResult first = TrainLayout(data, Pipeline("1f1b", precision()), kSteps, kInTurns);
  for (const char* schedule : {"gpipe", "zb-h1", "breadth_first"}) {
    ExpectSame(TrainLayout(data, Pipeline(schedule, precision()), kSteps, threads()), first,
               schedule);
  }
}

TEST_P(BitwiseTest, ALayerForAllMicroBatchesBeforeTheNextChangesNothing) {
  const JobData data = DataOf(family());
  v1::Layout layout = Precision(precision());
  layout.set_micro_batches(4);
  layout.set_schedule("gpipe");
  const JobResult gpipe = TrainLayout(data, layout, kSteps, kInTurns);
  layout.set_schedule("breadth_first");
  for (const uint32_t chunks : {1, 2, 4}) {
    layout.set_interleave(chunks);
    ExpectSame(TrainLayout(data, layout, kSteps, threads()), gpipe,
               absl::StrCat(chunks, " chunks"));
  }
  for (const v1::Layout& other : WithEachRecompute(layout)) {
    ExpectSame(TrainLayout(data, other, kSteps, threads()), gpipe,
               other.recompute_layers().empty() ? other.recompute() : "a mix of layers");
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, BitwiseTest,
                         testing::Combine(testing::Values("gpt2", "llama", "qwen3"),
                                          testing::Values("fp32", "bf16", "bf16_bf16", "fp8_bf16",
                                                          "fp16", "fp8")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

TEST(BitwiseTest, RecomputeChangesNothingWhereRanksShareEverything) {
  for (const auto& [family, precision] : {std::pair("gpt2", "fp32"), std::pair("qwen3", "bf16")}) {
    const JobData data = DataOf(family);
    v1::Layout layout = Pipeline("1f1b", precision);
    layout.set_tensor_parallel(2);
    layout.set_sequence_parallel(true);
    layout.set_context_parallel(2);
    layout.set_zero_stage(3);
    layout.set_micro_batches(2);
    const JobResult none = TrainLayout(data, layout, kSteps, kInTurns);
    for (const char* recompute : {"selective", "full"}) {
      v1::Layout other = layout;
      other.set_recompute(recompute);
      ExpectSame(TrainLayout(data, other, kSteps), none, absl::StrCat(family, " ", recompute));
    }
  }
}

TEST(BitwiseTest, RecomputeChangesNothingWhereWeightGradientsArePutOff) {
  const JobData data = DataOf("gpt2");
  for (const char* schedule : {"zb-h1", "zbv"}) {
    v1::Layout layout = Pipeline(schedule);
    layout.set_interleave(layout.schedule() == "zbv" ? 2 : 1);
    const JobResult none = TrainLayout(data, layout, kSteps, kInTurns);
    layout.set_recompute("full");
    ExpectSame(TrainLayout(data, layout, kSteps), none, schedule);
  }
}

// A tied embedding sums its two uses in another order when stages share it, so llama only.
TEST(BitwiseTest, StagesChangeNothing) {
  const JobData data = DataOf("llama", /*clip=*/0);
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    v1::Layout one = Precision(precision);
    one.set_micro_batches(4);
    const JobResult alone = TrainLayout(data, one, kSteps, kInTurns);
    ExpectSame(TrainLayout(data, Pipeline("1f1b", precision), kSteps), alone, "1f1b");
    for (const char* schedule : {"interleaved", "zbv", "breadth_first"}) {
      v1::Layout chunks = Pipeline(schedule, precision);
      chunks.set_interleave(2);
      ExpectSame(TrainLayout(data, chunks, kSteps), alone, schedule);
    }
  }
}

// Each element is the sum of two ranks' gradients, whoever computes it.
TEST(BitwiseTest, ZeroOnTwoRanksChangesNothing) {
  for (const char* family : {"gpt2", "llama"}) {
    const JobData data = DataOf(family, /*clip=*/0);
    const JobResult none = TrainLayout(data, Zero(0), kSteps, kInTurns);
    for (uint32_t stage : {1, 2, 3}) {
      ExpectSame(TrainLayout(data, Zero(stage), kSteps), none,
                 absl::StrCat(family, " zero ", stage));
    }
  }
}

// Sums of a rank's micro-batches and sums over ranks change places; the last two stages differ in
// where the weights are, and in nothing else.
TEST(BitwiseTest, ZeroWithAccumulationChangesTheOrderOfSumsOnly) {
  const JobData data = DataOf("gpt2");
  const JobResult none = TrainLayout(data, Zero(0, 4, 2), kSteps, kInTurns);
  const JobResult one = TrainLayout(data, Zero(1, 4, 2), kSteps, kInTurns);
  const JobResult two = TrainLayout(data, Zero(2, 4, 2), kSteps, kInTurns);
  ExpectClose(one, none, "zero 1");
  ExpectClose(two, none, "zero 2");
  ExpectSame(TrainLayout(data, Zero(3, 4, 2), kSteps), two, "zero 3");
}

// ---- weights in bf16, rounded stochastically ----------------------------------------------------

v1::Layout Rounded(v1::Layout layout) {
  layout.set_precision("bf16");
  layout.set_stochastic_rounding(true);
  return layout;
}

// Every element has its bits, wherever it is updated: in shards of whole layers, in stages, after
// passes that are recomputed.
TEST(StochasticRoundingTest, WhoeverUpdatesAWeightRoundsItAlike) {
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    const JobData data = DataOf(family, /*clip=*/0);
    const JobResult none = TrainLayout(data, Rounded(Zero(0)), kSteps, kInTurns);
    for (uint32_t stage : {1, 2, 3}) {
      ExpectSame(TrainLayout(data, Rounded(Zero(stage)), kSteps), none,
                 absl::StrCat(family, " zero ", stage));
    }
  }
  const JobData data = DataOf("llama", /*clip=*/0);
  v1::Layout one = Rounded(Precision("bf16"));
  one.set_micro_batches(4);
  const JobResult alone = TrainLayout(data, one, kSteps, kInTurns);
  ExpectSame(TrainLayout(data, Rounded(Pipeline("1f1b", "bf16")), kSteps), alone, "stages");
  one.set_recompute("full");
  ExpectSame(TrainLayout(data, one, kSteps), alone, "recompute");
}

// Merging the ranks' states, TrainInProcess refuses copies that differ in a bit.
TEST(StochasticRoundingTest, RanksThatHoldTheSameWeightsKeepThemTheSame) {
  for (const char* family : {"gpt2", "qwen3"}) {
    v1::Layout layout = Rounded(Pipeline("1f1b", "bf16"));
    layout.set_tensor_parallel(2);
    layout.set_context_parallel(2);
    layout.set_micro_batches(2);
    EXPECT_EQ(TrainLayout(DataOf(family), layout, kSteps).losses.size(), size_t{kSteps});
  }
}

TEST(StochasticRoundingTest, AnotherSeedRoundsOtherwise) {
  JobData data = DataOf("llama");
  const JobResult first = TrainLayout(data, Rounded(Precision("bf16")), kSteps, kInTurns);
  ExpectSame(TrainLayout(data, Rounded(Precision("bf16")), kSteps), first, "the same seed");
  data.train.set_seed(data.train.seed() + 1);
  EXPECT_NE(TrainLayout(data, Rounded(Precision("bf16")), kSteps).weights, first.weights);
}

}  // namespace
}  // namespace terrace
