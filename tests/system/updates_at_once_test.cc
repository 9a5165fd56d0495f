// Updates that take place during the passes, as soon as a gradient is final, give the bits of those
// that wait for the whole gradient: losses, gradient norms and weights, wherever these lie. The
// reference clips by a norm that no gradient reaches: it waits for the norm, which changes nothing.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 3;
constexpr double kNoNormReaches = 1e30;

JobData DataOf(const std::string& family) {
  return RandomJob(
      TinyModel(family,
                {.vocabulary = 331, .hidden = 64, .layers = 4, .intermediate = 96, .sequence = 16}),
      /*rows=*/16, /*length=*/16);
}

v1::Layout LayoutOf(const std::string& schedule, uint32_t micro_batches) {
  v1::Layout layout = MatrixLayout();
  layout.set_schedule(schedule);
  layout.set_micro_batches(micro_batches);
  layout.set_chunk_bytes(3 * 4096);
  if (schedule == "breadth_first") layout.set_interleave(4);
  return layout;
}

void ExpectAlike(JobData data, const v1::Layout& layout) {
  const LayoutCase described = {.family = "", .layout = layout};
  const std::string what = Describe(described);
  data.train.set_clip_grad_norm(kNoNormReaches);
  const JobResult at_end = TrainLayout(data, layout, kSteps, kInTurns);
  data.train.set_clip_grad_norm(0);
  ASSERT_TRUE(UpdatesAtOnce(layout, data.train.clip_grad_norm())) << what;
  const JobResult at_once =
      TrainLayout(data, layout, kSteps, ThreadsOfOneFamily(data.model.config.family));
  ASSERT_EQ(at_once.losses.size(), static_cast<size_t>(kSteps)) << what;
  EXPECT_EQ(at_once.losses, at_end.losses) << what;
  EXPECT_EQ(at_once.grad_norms, at_end.grad_norms) << what;
  EXPECT_EQ(at_once.weights, at_end.weights) << what;
}

class UpdatesAtOnceTest : public testing::TestWithParam<const char*> {
 protected:
  const JobData data_ = DataOf(GetParam());
};

TEST_P(UpdatesAtOnceTest, OnOneDevice) {
  for (const char* schedule : {"1f1b", "gpipe", "breadth_first"}) {
    for (const uint32_t micro_batches : {1, 2, 4}) {
      for (const char* recompute : {"none", "block"}) {
        v1::Layout layout = LayoutOf(schedule, micro_batches);
        layout.set_recompute(recompute);
        ExpectAlike(data_, layout);
      }
    }
  }
}

TEST_P(UpdatesAtOnceTest, OnRanksThatShareTheStates) {
  for (const char* schedule : {"1f1b", "breadth_first"}) {
    for (const uint32_t zero : {0, 1, 2, 3}) {
      v1::Layout layout = LayoutOf(schedule, 2);
      layout.set_data_parallel(2);
      layout.set_zero_stage(zero);
      ExpectAlike(data_, layout);
      layout.set_precision("bf16");
      layout.set_stochastic_rounding(true);
      layout.set_reduce_format("bf16");
      ExpectAlike(data_, layout);
    }
  }
}

TEST_P(UpdatesAtOnceTest, WhereStatesRestOffTheDevice) {
  for (const char* schedule : {"1f1b", "breadth_first"}) {
    for (const uint32_t micro_batches : {1, 3}) {
      for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
        for (const v1::Tier gradient : {v1::DEVICE, tier}) {
          v1::Layout layout = LayoutOf(schedule, micro_batches);
          layout.set_recompute("block");
          v1::Offload& offload = *layout.mutable_offload();
          PutOn(tier, offload.mutable_parameter());
          PutOn(gradient, offload.mutable_gradient());
          PutOn(tier, offload.mutable_optimizer());
          PutOn(tier, offload.mutable_activation());
          ExpectAlike(data_, layout);
        }
      }
    }
  }
}

TEST_P(UpdatesAtOnceTest, WhereMomentsAloneRestOnTheHost) {
  for (const uint32_t zero : {0, 3}) {
    v1::Layout layout = LayoutOf("breadth_first", 2);
    layout.set_data_parallel(zero == 0 ? 1 : 2);
    layout.set_zero_stage(zero);
    v1::Offload& offload = *layout.mutable_offload();
    PutOn(v1::DEVICE, offload.mutable_parameter());
    PutOn(v1::DEVICE, offload.mutable_gradient());
    PutOn(v1::DEVICE, offload.mutable_activation());
    offload.mutable_optimizer()->set_host(0.5);
    offload.mutable_optimizer()->set_device(0.5);
    ExpectAlike(data_, layout);
  }
}

TEST_P(UpdatesAtOnceTest, OnStagesInRuns) {
  for (const uint32_t zero : {0, 3}) {
    v1::Layout layout = LayoutOf("breadth_first", 4);
    layout.set_pipeline_parallel(2);
    layout.set_interleave(2);
    layout.set_data_parallel(zero == 0 ? 1 : 2);
    layout.set_zero_stage(zero);
    ExpectAlike(data_, layout);
  }
}

TEST_P(UpdatesAtOnceTest, WhereRanksShareProductsAndSequences) {
  for (const bool sequence_parallel : {false, true}) {
    v1::Layout layout = LayoutOf("1f1b", 2);
    layout.set_tensor_parallel(2);
    layout.set_sequence_parallel(sequence_parallel);
    layout.set_context_parallel(2);
    ExpectAlike(data_, layout);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, UpdatesAtOnceTest, testing::Values("gpt2", "llama", "qwen3"));

}  // namespace
}  // namespace terrace
