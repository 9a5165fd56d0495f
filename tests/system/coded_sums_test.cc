// Gradients that travel in 8 bits: the loss of a text falls as with 32, ranks agree to the bit, and
// where gradients rest and in which order passes run changes nothing.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/system/text_job.h"

namespace terrace {
namespace {

v1::Layout Sent(const std::string& format, uint32_t zero, uint32_t micro_batches = 4) {
  v1::Layout layout = MatrixLayout();
  layout.set_precision("bf16");
  layout.set_micro_batches(micro_batches);
  layout.set_data_parallel(2);
  layout.set_zero_stage(zero);
  layout.set_reduce_format(format);
  layout.set_chunk_bytes(3 * 4096);
  return layout;
}

TEST(CodedSumsTest, TheLossOfATextFallsAsWithNumbers) {
  constexpr int64_t kSteps = 80;
  for (const char* family : {"gpt2", "llama"}) {
    JobData data = TextJob(family, /*rows=*/16);
    data.train.set_steps(kSteps);
    for (const uint32_t zero : {1, 2, 3}) {
      const JobResult exact = TrainLayout(data, Sent("f32", zero), kSteps);
      EXPECT_LT(LastLoss(exact), 0.7 * exact.losses.front()) << family;
      for (const char* format : {"fp8", "int8"}) {
        const JobResult rough = TrainLayout(data, Sent(format, zero), kSteps);
        EXPECT_EQ(rough.losses.front(), exact.losses.front()) << "the first loss has no gradient";
        EXPECT_NE(rough.losses.back(), exact.losses.back()) << "nothing was encoded";
        EXPECT_NEAR(rough.grad_norms.front(), exact.grad_norms.front(),
                    0.01 * exact.grad_norms.front());
        // Rounding moves a run as another seed does.
        EXPECT_NEAR(LastLoss(rough), LastLoss(exact), 0.02 * LastLoss(exact))
            << family << " " << format << " zero " << zero;
      }
    }
  }
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_TRUE(a.weights == b.weights) << what;
}

TEST(CodedSumsTest, WhereGradientsRestAndHowPassesRunChangesNothing) {
  constexpr int64_t kSteps = 3;
  JobData data = RandomJob(
      TinyModel("llama",
                {.vocabulary = 331, .hidden = 64, .layers = 3, .intermediate = 96, .sequence = 16}),
      /*rows=*/8, /*length=*/16);
  data.train.set_clip_grad_norm(1e30);
  for (const uint32_t zero : {1, 2, 3}) {
    v1::Layout layout = Sent("int8", zero, 2);
    const JobResult here = TrainLayout(data, layout, kSteps);
    layout.set_recompute("block");
    ExpectSame(TrainLayout(data, layout, kSteps), here, "recompute");
    layout.set_recompute("none");
    for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
      v1::Layout away = layout;
      PutOn(tier, away.mutable_offload()->mutable_gradient());
      PutOn(tier, away.mutable_offload()->mutable_optimizer());
      ExpectSame(TrainLayout(data, away, kSteps), here, std::string(v1::Tier_Name(tier)));
    }
    JobData at_once = data;
    at_once.train.set_clip_grad_norm(0);
    ExpectSame(TrainLayout(at_once, layout, kSteps), here, "updates at once");
  }
}

int64_t Count(const JobResult& result, const std::string& op) {
  const auto& all = result.programs.at(0).sequences(0).instructions();
  return std::count_if(all.begin(), all.end(),
                       [&](const v1::Instruction& i) { return i.compute().op() == op; });
}

TEST(CodedSumsTest, OtherWaysToSplitAStepGoWithThem) {
  JobData data = TextJob("qwen3", /*rows=*/16, 4);
  std::vector<v1::Layout> layouts(6, Sent("int8", 2));
  layouts[0].set_pipeline_parallel(2);
  layouts[1].set_tensor_parallel(2);
  layouts[2].set_context_parallel(2);
  layouts[3].set_data_parallel(4);
  layouts[3].set_shard_size(2);
  layouts[3].set_micro_batches(2);
  layouts[4].set_schedule("breadth_first");
  layouts[4].set_interleave(4);
  layouts[5].set_gradient_format("bf16");
  for (v1::Layout& layout : layouts) {
    const std::string what = Describe(LayoutCase{"qwen3", layout});
    const JobResult rough = TrainLayout(data, layout, 3);
    EXPECT_GT(Count(rough, "sum_blocks"), 0) << what;
    layout.set_reduce_format(layout.gradient_format().empty() ? "f32" : "bf16");
    const JobResult exact = TrainLayout(data, layout, 3);
    EXPECT_EQ(Count(exact, "sum_blocks"), 0) << what;
    for (const size_t step : {1, 2})
      EXPECT_NEAR(rough.losses[step], exact.losses[step], 0.005 * exact.losses[step]) << what;
  }
}

// Norms and biases are few, and are summed in f32.
TEST(CodedSumsTest, AQuarterOfTheBytesOfMatricesTravels) {
  const JobData data = TextJob("llama", /*rows=*/8, 4);
  const auto sent = [&](const std::string& format) {
    const JobResult result = TrainLayout(data, Sent(format, 1, 2), 1);
    double matrices = 0;
    for (const v1::Instruction& i : result.programs.at(0).sequences(0).instructions()) {
      const v1::CollectiveKind kind = i.collective().kind();
      const v1::Operand& from = i.operands().empty() ? v1::Operand() : i.operands(0);
      const bool sums = kind == v1::REDUCE_SCATTER && i.text().find("vectors") == i.text().npos;
      if (sums || kind == v1::ALL_TO_ALL)
        matrices += static_cast<double>(from.shape(0)) * (from.dtype() == v1::U8 ? 1 : 4);
    }
    return std::pair(matrices, static_cast<double>(result.sent_per_step[0].at("shard")));
  };
  const auto [numbers, all] = sent("f32");
  const auto [codes, all_of_codes] = sent("int8");
  EXPECT_DOUBLE_EQ(codes / numbers, (1 + 4.0 / 128) / 4);
  EXPECT_DOUBLE_EQ(all - all_of_codes, (numbers - codes) / 2) << "of two ranks each sends its half";
}

}  // namespace
}  // namespace terrace
