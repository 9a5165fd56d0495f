// Adam's moments in fewer bits: the loss of a text falls as with moments in f32, and who holds what
// of them changes no bit.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/system/text_job.h"

namespace terrace {
namespace {

v1::Layout With(const char* format, uint32_t micro_batches) {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(micro_batches);
  layout.set_moments_format(format);
  return layout;
}

TEST(MomentsTest, TheLossOfATextFallsAsWithF32) {
  constexpr int64_t kSteps = 80;
  for (const char* family : {"gpt2", "llama"}) {
    JobData data = TextJob(family, /*rows=*/16);
    data.train.set_steps(kSteps);
    const JobResult exact = TrainLayout(data, With("f32", 8), kSteps, kInTurns);
    EXPECT_LT(LastLoss(exact), 0.7 * exact.losses.front()) << family;
    for (const char* format : {"bf16", "int8"}) {
      const JobResult rough = TrainLayout(data, With(format, 8), kSteps, kInTurns);
      EXPECT_NE(rough.losses.back(), exact.losses.back()) << "nothing was rounded";
      EXPECT_NEAR(LastLoss(rough), LastLoss(exact), 0.01 * LastLoss(exact))
          << family << " " << format;
    }
  }
}

// One micro-batch a rank: what is summed is summed in one order. Without clipping the norm, whose
// sum has another order in shards, changes nothing.
TEST(MomentsTest, ShardsAreUpdatedLikeWholeMoments) {
  constexpr int64_t kSteps = 4;
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    JobData data = TextJob(family, /*rows=*/4);
    data.train.set_clip_grad_norm(0);
    for (const char* format : {"f32", "bf16", "int8"}) {
      v1::Layout layout = With(format, 1);
      layout.set_data_parallel(2);
      const JobResult whole = TrainLayout(data, layout, kSteps, kInTurns);
      for (const uint32_t zero : {1, 2, 3}) {
        layout.set_zero_stage(zero);
        const JobResult shards = TrainLayout(data, layout, kSteps, ThreadsOfOneFamily(family));
        EXPECT_EQ(shards.losses, whole.losses) << family << " " << format << " zero " << zero;
        EXPECT_EQ(shards.weights, whole.weights) << family << " " << format << " zero " << zero;
        EXPECT_EQ(shards.first_moment, whole.first_moment)
            << family << " " << format << " zero " << zero;
        EXPECT_EQ(shards.second_moment, whole.second_moment)
            << family << " " << format << " zero " << zero;
      }
    }
  }
}

// A stage holds layers alone, a rank of tensor parallelism parts of rows: blocks of 32 elements.
TEST(MomentsTest, OtherWaysToSplitAStepGoWithThem) {
  constexpr int64_t kSteps = 3;
  JobData data = TextJob("llama", /*rows=*/8);
  data.train.set_clip_grad_norm(0);
  const JobResult alone = TrainLayout(data, With("int8", 4), kSteps);
  v1::Layout stages = With("int8", 4);
  stages.set_pipeline_parallel(2);
  EXPECT_EQ(TrainLayout(data, stages, kSteps).weights, alone.weights);
  v1::Layout tensor = With("int8", 4);
  tensor.set_tensor_parallel(2);
  const JobResult cut = TrainLayout(data, tensor, kSteps);
  EXPECT_EQ(cut.programs[0].rules().moment_block(), 32);
  EXPECT_NEAR(cut.losses.back(), alone.losses.back(), 1e-3);
}

// Of a stage, in bytes a parameter of its matrices.
double OptimizerBytes(const JobResult& result) {
  double bytes = 0, elements = 0;
  for (const v1::Buffer& buffer : result.programs[0].buffers()) {
    if (buffer.lifetime() != v1::PERSISTENT) continue;
    if (buffer.name().ends_with(".vectors")) continue;
    if (buffer.class_() == v1::OPTIMIZER) bytes += static_cast<double>(buffer.bytes());
    if (buffer.name().starts_with("first_moment."))
      elements += static_cast<double>(buffer.bytes() /
                                      kernels::SizeOf(static_cast<kernels::DType>(buffer.dtype())));
  }
  return bytes / elements;
}

TEST(MomentsTest, BytesAParameterAreThoseOfTheFormat) {
  const JobData data = TextJob("llama", /*rows=*/8);
  for (const auto& [format, bytes] :
       {std::pair("bf16", 4.0), std::pair("int8", 2 * (1 + 4.0 / 256))}) {
    EXPECT_DOUBLE_EQ(OptimizerBytes(TrainLayout(data, With(format, 4), 1)), bytes) << format;
  }
}

}  // namespace
}  // namespace terrace
