// Weights that travel in 8 bits: the loss of a text falls as with 16, ranks agree to the bit, and
// where shards rest and in which order passes run changes nothing.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/system/text_job.h"

namespace terrace {
namespace {

v1::Layout Shared(const std::string& format, uint32_t micro_batches = 4) {
  v1::Layout layout = MatrixLayout();
  layout.set_precision("bf16");
  layout.set_micro_batches(micro_batches);
  layout.set_data_parallel(2);
  layout.set_zero_stage(3);
  layout.set_gather_format(format);
  layout.set_parameter_format("bf16");  // wherever shards rest
  layout.set_chunk_bytes(3 * 4096);
  return layout;
}

TEST(GathersTest, TheLossOfATextFallsAsWithWhatPassesRead) {
  constexpr int64_t kSteps = 80;
  for (const char* family : {"gpt2", "llama"}) {
    JobData data = TextJob(family, /*rows=*/16);
    data.train.set_steps(kSteps);
    const JobResult exact = TrainLayout(data, Shared(""), kSteps, kInTurns);
    EXPECT_LT(LastLoss(exact), 0.7 * exact.losses.front()) << family;
    for (const char* format : {"fp8", "int8"}) {
      const JobResult rough = TrainLayout(data, Shared(format), kSteps, kInTurns);
      EXPECT_NE(rough.losses.front(), exact.losses.front()) << "nothing was encoded";
      EXPECT_NEAR(rough.losses.front(), exact.losses.front(), 5e-3 * exact.losses.front());
      // With 3 bits of fraction a loss differs by up to 1.1 % on some processors.
      const double near = std::string(format) == "fp8" ? 0.02 : 0.01;
      EXPECT_NEAR(LastLoss(rough), LastLoss(exact), near * LastLoss(exact))
          << family << " " << format;
    }
  }
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_TRUE(a.weights == b.weights) << what;
}

TEST(GathersTest, WhereShardsRestAndHowPassesRunChangesNothing) {
  constexpr int64_t kSteps = 3;
  JobData data = RandomJob(
      TinyModel("llama",
                {.vocabulary = 331, .hidden = 64, .layers = 3, .intermediate = 96, .sequence = 16}),
      /*rows=*/8, /*length=*/16);
  data.train.set_clip_grad_norm(0);
  for (const char* format : {"fp8", "int8"}) {
    v1::Layout layout = Shared(format, 2);
    const JobResult here = TrainLayout(data, layout, kSteps);
    for (const char* recompute : {"selective", "block", "full"}) {
      layout.set_recompute(recompute);
      ExpectSame(TrainLayout(data, layout, kSteps), here, recompute);
    }
    layout.set_recompute("none");
    for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
      v1::Layout away = layout;
      PutOn(tier, away.mutable_offload()->mutable_parameter());
      PutOn(tier, away.mutable_offload()->mutable_gradient());
      PutOn(tier, away.mutable_offload()->mutable_optimizer());
      ExpectSame(TrainLayout(data, away, kSteps), here, std::string(v1::Tier_Name(tier)));
    }
    layout.set_schedule("breadth_first");
    layout.set_interleave(3);
    const JobResult by_layer = TrainLayout(data, layout, kSteps);
    layout.set_recompute("block");
    ExpectSame(TrainLayout(data, layout, kSteps), by_layer, "layer by layer");
  }
}

bool Decodes(const JobResult& result) {
  const auto& all = result.programs.at(0).sequences(0).instructions();
  return std::any_of(all.begin(), all.end(), [](const v1::Instruction& i) {
    return i.compute().op() == "decode_blocks" && i.text().find("decode layer") == 0;
  });
}

// With what has been encoded for the backward pass as well.
TEST(GathersTest, OtherWaysToSplitAStepGoWithThem) {
  JobData data = TextJob("qwen3", /*rows=*/16, 4);
  std::vector<v1::Layout> layouts(4, Shared("int8"));
  layouts[0].set_pipeline_parallel(2);
  layouts[1].set_tensor_parallel(2);
  layouts[2].set_context_parallel(2);
  layouts[3].set_activation_format("fp8");
  for (v1::Layout& layout : layouts) {
    const JobResult rough = TrainLayout(data, layout, 2);
    EXPECT_TRUE(Decodes(rough)) << Describe(LayoutCase{"qwen3", layout});
    layout.set_gather_format("");
    const JobResult exact = TrainLayout(data, layout, 2, kInTurns);
    for (const size_t step : {0, 1})
      EXPECT_NEAR(rough.losses[step], exact.losses[step], 0.01 * exact.losses[step])
          << Describe(LayoutCase{"qwen3", layout});
  }
}

// Of a use: codes and scales of the ranks' shards, by all of them.
TEST(GathersTest, HalfOfTheBytesTravel) {
  const JobData data = TextJob("llama", /*rows=*/8, 4);
  const auto gathered = [&](const std::string& format) {
    const JobResult result = TrainLayout(data, Shared(format), 1);
    double bytes = 0;
    for (const v1::Instruction& i : result.programs.at(0).sequences(0).instructions()) {
      if (i.collective().kind() == v1::ALL_GATHER && i.operands(1).dtype() != v1::F32)
        bytes += static_cast<double>(i.operands(1).shape(0)) * (format.empty() ? 2 : 1);
      if (i.text().find("scales of") != std::string::npos)
        bytes += 4 * static_cast<double>(i.operands(1).shape(0));
    }
    return bytes;
  };
  EXPECT_EQ(TrainLayout(data, Shared(""), 1).sent_per_step[0].count("shard"), 1u);
  const double before = gathered("");
  EXPECT_DOUBLE_EQ(gathered("int8") / before, (1 + 4.0 / 128) / 2);
  const auto sent = [&](const std::string& format) {
    return static_cast<double>(TrainLayout(data, Shared(format), 1).sent_per_step[0].at("shard"));
  };
  EXPECT_LT(sent("int8"), sent("") - 0.45 * before / 2) << "of two ranks each sends its half";
}

}  // namespace
}  // namespace terrace
