// Gradients that travel in 8 or 4 bits: the loss of a text falls as with 32, ranks agree to the
// bit, and where gradients rest and in which order passes run changes nothing.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

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
      const JobResult exact = TrainLayout(data, Sent("f32", zero), kSteps, kInTurns);
      EXPECT_LT(LastLoss(exact), 0.7 * exact.losses.front()) << family;
      for (const char* format : {"fp8", "int8", "int4"}) {
        const JobResult rough = TrainLayout(data, Sent(format, zero), kSteps, kInTurns);
        EXPECT_EQ(rough.losses.front(), exact.losses.front()) << "the first loss has no gradient";
        EXPECT_NE(rough.losses.back(), exact.losses.back()) << "nothing was encoded";
        const double near = std::string(format) == "int4" ? 0.05 : 0.01;
        EXPECT_NEAR(rough.grad_norms.front(), exact.grad_norms.front(),
                    near * exact.grad_norms.front());
        // Rounding moves a run as another seed does.
        EXPECT_NEAR(LastLoss(rough), LastLoss(exact), 0.02 * LastLoss(exact))
            << family << " " << format << " zero " << zero;
      }
    }
  }
}

// Two blocks of two ranks: what is sent between them was rounded twice.
TEST(CodedSumsTest, TheLossOfATextFallsInTwoLevelsAsInOne) {
  constexpr int64_t kSteps = 80;
  JobData data = TextJob("llama", /*rows=*/16);
  data.train.set_steps(kSteps);
  for (const uint32_t zero : {1, 2, 3}) {
    v1::Layout layout = Sent("f32", zero, 2);
    layout.set_data_parallel(4);
    const JobResult exact = TrainLayout(data, layout, kSteps, kInTurns);
    for (const char* format : {"fp8", "int8", "int4"}) {
      layout.set_reduce_format(format);
      layout.set_reduce_block(0);
      const JobResult one = TrainLayout(data, layout, kSteps, kInTurns);
      layout.set_reduce_block(2);
      const JobResult two = TrainLayout(data, layout, kSteps, kInTurns);
      EXPECT_EQ(two.losses.front(), exact.losses.front()) << "the first loss has no gradient";
      EXPECT_NE(two.losses.back(), one.losses.back()) << "nothing was encoded again";
      EXPECT_NEAR(LastLoss(two), LastLoss(exact), 0.02 * LastLoss(exact))
          << format << " zero " << zero;
    }
  }
}

// Of the matrices.
double Distance(const Tensors& a, const Tensors& b) {
  double squares = 0;
  for (const auto& [name, numbers] : a) {
    const std::vector<float>& others = b.at(name);
    for (size_t i = 0; i < numbers.size(); ++i)
      squares += (numbers[i] - others[i]) * (numbers[i] - others[i]);
  }
  return std::sqrt(squares);
}

// While weights stay as they are gradients do so too. Without residuals their codes are the same in
// every step, and so is what these lose; with them it comes later, so that averages come near.
TEST(CodedSumsTest, WhatCodesLoseComesWithTheNextGradient) {
  constexpr int64_t kSteps = 60;
  JobData data = TextJob("llama", /*rows=*/16);
  data.train.set_steps(kSteps);
  data.train.set_clip_grad_norm(1e30);
  data.train.mutable_optimizer()->set_lr(0);
  data.train.mutable_optimizer()->set_beta1(0.98);
  for (const uint32_t zero : {1, 2, 3}) {
    v1::Layout numbers = Sent("f32", zero, 2);
    numbers.set_data_parallel(4);
    const Tensors exact = TrainLayout(data, numbers, kSteps, kInTurns).first_moment;
    for (const uint32_t block : {1, 2}) {
      v1::Layout layout = numbers;
      layout.set_reduce_format("int4");
      layout.set_reduce_block(block);
      const double lost = Distance(TrainLayout(data, layout, kSteps, kInTurns).first_moment, exact);
      EXPECT_GT(lost, 0);
      for (const char* format : {"bf16", "f32"}) {
        layout.set_residual_format(format);
        EXPECT_LT(Distance(TrainLayout(data, layout, kSteps, kInTurns).first_moment, exact),
                  lost / 4)
            << format << " zero " << zero << " block " << block;
      }
    }
  }
}

TEST(CodedSumsTest, TheLossOfATextFallsWithResidualsToo) {
  constexpr int64_t kSteps = 80;
  JobData data = TextJob("gpt2", /*rows=*/16);
  data.train.set_steps(kSteps);
  v1::Layout layout = Sent("f32", 2, 2);
  layout.set_data_parallel(4);
  const JobResult exact = TrainLayout(data, layout, kSteps, kInTurns);
  layout.set_reduce_format("int4");
  layout.set_reduce_block(2);
  layout.set_residual_format("bf16");
  const JobResult kept = TrainLayout(data, layout, kSteps, kInTurns);
  EXPECT_NEAR(LastLoss(kept), LastLoss(exact), 0.02 * LastLoss(exact));
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
    v1::Layout layout = Sent(zero == 2 ? "int4" : "int8", zero, 2);
    if (zero > 1) {
      layout.set_data_parallel(4);
      layout.set_micro_batches(1);
      layout.set_reduce_block(2);
      layout.set_residual_format("bf16");
    }
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
  std::vector<v1::Layout> layouts(9, Sent("int8", 2));
  layouts[0].set_pipeline_parallel(2);
  layouts[1].set_tensor_parallel(2);
  layouts[2].set_context_parallel(2);
  layouts[3].set_data_parallel(4);
  layouts[3].set_shard_size(2);
  layouts[3].set_micro_batches(2);
  layouts[4].set_schedule("breadth_first");
  layouts[4].set_interleave(4);
  layouts[5].set_gradient_format("bf16");
  for (size_t i = 6; i < layouts.size(); ++i) {
    layouts[i].set_reduce_format("int4");
    layouts[i].set_data_parallel(4);
    layouts[i].set_micro_batches(2);
    layouts[i].set_reduce_block(2);
  }
  layouts[6].set_context_parallel(2);
  layouts[7].set_tensor_parallel(2);
  layouts[8].set_data_parallel(8);
  layouts[8].set_shard_size(4);
  layouts[8].set_micro_batches(1);
  for (const size_t i : {0, 1, 2, 4, 5, 6, 7}) layouts[i].set_residual_format("bf16");
  for (v1::Layout& layout : layouts) {
    const std::string what = Describe(LayoutCase{"qwen3", layout});
    const JobResult rough = TrainLayout(data, layout, 3);
    EXPECT_GT(Count(rough, "sum_blocks"), 0) << what;
    layout.set_reduce_format(layout.gradient_format().empty() ? "f32" : "bf16");
    layout.set_reduce_block(0);
    layout.clear_residual_format();
    const JobResult exact = TrainLayout(data, layout, 3, kInTurns);
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

// Of four ranks, two to a block: between blocks goes half of what a rank has, and of it the half
// that the other block's rank keeps.
TEST(CodedSumsTest, BetweenBlocksTravelsWhatEachOfThemHasSummed) {
  const JobData data = TextJob("llama", /*rows=*/8, 4);
  v1::Layout layout = Sent("int4", 1, 2);
  layout.set_data_parallel(4);
  layout.set_micro_batches(1);
  const auto sent = [&](uint32_t block) {
    layout.set_reduce_block(block);
    return TrainLayout(data, layout, 1).sent_per_step[0];
  };
  const auto one = sent(0), two = sent(2);
  const double codes = static_cast<double>(one.at("shard") - two.at("shard")) / 0.75;
  EXPECT_EQ(static_cast<double>(two.at("near")), codes / 2);
  // Half of a rank's elements have a sum, which has a byte and its part of a scale, and of these
  // the other half travels.
  constexpr double kSum = (1 + 4.0 / 128) / (0.5 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(static_cast<double>(two.at("far")), codes * kSum / 4);
}

}  // namespace
}  // namespace terrace
