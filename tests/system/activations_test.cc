// Activations that wait for the backward pass in 8 bits: the forward pass computes what it computes
// without, the loss of a text falls as with 16 bits, and how the step is cut and where codes rest
// changes no bit.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/system/text_job.h"

namespace terrace {
namespace {

constexpr int64_t kLayers = 6;  // the last two layers keep what they have: it is used at once

v1::Layout With(const std::string& format, uint32_t micro_batches) {
  v1::Layout layout = MatrixLayout();
  layout.set_precision("bf16");
  layout.set_micro_batches(micro_batches);
  layout.set_activation_format(format);
  return layout;
}

int64_t Count(const JobResult& result, const std::string& op) {
  int64_t count = 0;
  for (const v1::Program& program : result.programs) {
    for (const v1::Sequence& sequence : program.sequences()) {
      count += std::count_if(sequence.instructions().begin(), sequence.instructions().end(),
                             [&](const auto& i) { return i.compute().op() == op; });
    }
  }
  return count;
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.grad_norms, b.grad_norms) << what;
  EXPECT_TRUE(a.weights == b.weights) << what;
}

TEST(ActivationsTest, TheLossOfAStepIsExactAndThatOfATextFallsAsWithout) {
  constexpr int64_t kSteps = 60;
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* precision : {"bf16", "fp16"}) {
      if (family == std::string("gpt2") && precision == std::string("fp16")) continue;
      JobData data = TextJob(family, /*rows=*/8, kLayers);
      data.train.set_steps(kSteps);
      v1::Layout layout = With("", 4);
      layout.set_precision(precision);
      const JobResult exact = TrainLayout(data, layout, kSteps, kInTurns);
      EXPECT_LT(LastLoss(exact), 0.7 * exact.losses.front()) << family;
      for (const char* format : {"fp8", "int8"}) {
        layout.set_activation_format(format);
        const JobResult rough = TrainLayout(data, layout, kSteps, kInTurns);
        EXPECT_GT(Count(rough, "encode_blocks"), 0);
        EXPECT_EQ(rough.losses.front(), exact.losses.front()) << family << " " << format;
        EXPECT_NE(rough.losses.back(), exact.losses.back()) << "nothing was encoded";
        EXPECT_NEAR(LastLoss(rough), LastLoss(exact), 0.01 * LastLoss(exact))
            << family << " " << precision << " " << format;
      }
    }
  }
}

// Gradients are those of activations that are off by half a step at most.
TEST(ActivationsTest, GradientsAreCloseToThoseOfWholeActivations) {
  const JobData data = TextJob("llama", /*rows=*/8, kLayers);
  for (const char* recompute : {"none", "selective", "block", "sqrt"}) {
    v1::Layout layout = With("", 4);
    layout.set_recompute(recompute);
    const JobResult exact = TrainLayout(data, layout, 1, kInTurns);
    for (const auto& [format, bound] : {std::pair("fp8", 0.05), std::pair("int8", 0.02)}) {
      layout.set_activation_format(format);
      const JobResult rough = TrainLayout(data, layout, 1, kInTurns);
      double difference = 0, size = 0;
      for (const auto& [name, values] : exact.gradients) {
        const std::vector<float>& others = rough.gradients.at(name);
        for (size_t i = 0; i < values.size(); ++i) {
          difference += std::pow(others[i] - values[i], 2);
          size += std::pow(values[i], 2);
        }
      }
      EXPECT_LT(std::sqrt(difference / size), bound) << format << " " << recompute;
      EXPECT_GT(difference, 0) << format << " " << recompute;
    }
  }
}

TEST(ActivationsTest, HowAStepIsCutChangesNothing) {
  constexpr int64_t kSteps = 3;
  JobData data = TextJob("llama", /*rows=*/16, kLayers);
  data.train.set_clip_grad_norm(0);
  for (const char* format : {"fp8", "int8"}) {
    const v1::Layout layout = With(format, 8);
    const JobResult alone = TrainLayout(data, layout, kSteps, kInTurns);
    ExpectSame(TrainLayout(data, layout, kSteps, {.straight = true}), alone, "written out");
    v1::Layout shards = With(format, 4);
    shards.set_data_parallel(2);
    const JobResult copies = TrainLayout(data, shards, kSteps, kInTurns);
    for (const uint32_t zero : {1, 2, 3}) {
      shards.set_zero_stage(zero);
      const JobResult shared = TrainLayout(data, shards, kSteps);
      for (int64_t step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(shared.losses[step], copies.losses[step], 1e-4) << zero;
        EXPECT_NEAR(shared.grad_norms[step], copies.grad_norms[step], 1e-3) << zero;
      }
    }
  }
}

// A stage's last layers are followed by another stage: other activations wait there. Gradients are
// as close as in one stage.
TEST(ActivationsTest, OtherWaysToSplitAStepGoWithThem) {
  const JobData data = TextJob("llama", /*rows=*/16, 8);
  for (const char* format : {"fp8", "int8"}) {
    std::vector<v1::Layout> layouts(7, With(format, 4));
    layouts[0].set_pipeline_parallel(2);
    layouts[1].set_pipeline_parallel(2);
    layouts[1].set_schedule("zb-h1");
    layouts[2].set_pipeline_parallel(2);
    layouts[2].set_schedule("interleaved");
    layouts[2].set_interleave(2);
    layouts[3].set_tensor_parallel(2);
    layouts[3].set_sequence_parallel(true);
    layouts[4].set_context_parallel(2);
    layouts[5].set_context_parallel(2);
    layouts[5].set_context_type("ulysses");
    layouts[6].set_schedule("breadth_first");
    layouts[6].set_interleave(2);
    for (v1::Layout& layout : layouts) {
      const JobResult rough = TrainLayout(data, layout, 2);
      EXPECT_GT(Count(rough, "encode_blocks"), 0) << Describe(LayoutCase{"llama", layout});
      layout.set_activation_format("");
      const JobResult exact = TrainLayout(data, layout, 2, kInTurns);
      EXPECT_EQ(rough.losses[0], exact.losses[0]) << Describe(LayoutCase{"llama", layout});
      EXPECT_NEAR(rough.losses[1], exact.losses[1], 1e-3 * exact.losses[1])
          << Describe(LayoutCase{"llama", layout});
      EXPECT_NEAR(rough.grad_norms[0], exact.grad_norms[0], 0.02 * exact.grad_norms[0]);
    }
  }
}

TEST(ActivationsTest, CodesLeaveTheDeviceLikeActivations) {
  constexpr int64_t kSteps = 2;
  const JobData data = RandomJob(TinyModel("llama", {.vocabulary = 131,
                                                     .hidden = 128,
                                                     .layers = kLayers,
                                                     .intermediate = 256,
                                                     .sequence = 256}),
                                 /*rows=*/4, /*length=*/256);
  for (const char* format : {"fp8", "int8"}) {
    v1::Layout layout = With(format, 2);
    const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
    for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
      PutOn(tier, layout.mutable_offload()->mutable_activation());
      const JobResult moved = TrainLayout(data, layout, kSteps);
      ExpectSame(moved, resident, format);
      const auto& buffers = moved.programs.at(0).buffers();
      EXPECT_TRUE(std::any_of(
          buffers.begin(), buffers.end(),
          [&](const v1::Buffer& b) {
            return moved.programs[0].arenas(static_cast<int>(b.arena())).tier() == tier &&
                   b.name().find(".codes.home") != std::string::npos;
          }))
          << "no codes rest on tier " << tier;
    }
  }
}

}  // namespace
}  // namespace terrace
