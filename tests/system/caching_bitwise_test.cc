// How memory is given out changes no bit: losses, gradient norms and the whole state of jobs whose
// step buffers the caching allocator places equal those of the same job in planned mode, whatever
// else the layout does.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/program/caching_need.h"
#include "proto/program/grid.h"
#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 3;

JobData DataOf(const std::string& family) {
  return RandomJob(
      TinyModel(family,
                {.vocabulary = 331, .hidden = 64, .layers = 3, .intermediate = 96, .sequence = 16}),
      /*rows=*/8, /*length=*/16);
}

v1::Layout Planned(const std::string& precision = "fp32") {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(2);
  layout.set_chunk_bytes(3 * 4096);
  layout.set_precision(precision);
  return layout;
}

void PutStatesOn(v1::Tier tier, v1::Layout* layout) {
  PutOn(tier, layout->mutable_offload()->mutable_parameter());
  PutOn(tier, layout->mutable_offload()->mutable_gradient());
  PutOn(tier, layout->mutable_offload()->mutable_optimizer());
}

// Trains with the allocator; the rank must hold exactly what its program needs, and the numbers are
// those of the planned run.
void ExpectAs(const JobResult& planned, const JobData& data, v1::Layout layout,
              const std::string& allocator, const std::string& job) {
  layout.set_allocator(allocator);
  const std::string what = absl::StrCat(job, ", ", allocator);
  const JobResult caching = TrainLayout(data, layout, kSteps);
  ASSERT_EQ(caching.losses.size(), static_cast<size_t>(kSteps)) << what;
  EXPECT_EQ(caching.losses, planned.losses) << what;
  EXPECT_EQ(caching.grad_norms, planned.grad_norms) << what;
  EXPECT_EQ(caching.weights, planned.weights) << what;
  EXPECT_EQ(caching.first_moment, planned.first_moment) << what;
  EXPECT_EQ(caching.second_moment, planned.second_moment) << what;
  const Coordinates first = CoordinatesOf(caching.programs[0].grid(), 0);
  const v1::AllocatorStats& stats = caching.allocator[0];
  EXPECT_EQ(stats.mode(), allocator) << what;
  EXPECT_EQ(stats.reserved_bytes(), ReservedBytesNeeded(caching.programs[first.stage], v1::DEVICE))
      << what;
  EXPECT_LE(stats.requested_bytes(), stats.allocated_bytes()) << what;
  EXPECT_LE(stats.allocated_bytes(), stats.active_bytes()) << what;
  EXPECT_LE(stats.active_bytes(), stats.reserved_bytes()) << what;
  EXPECT_EQ(stats.ooms() + stats.retries(), 0) << what;
}

const std::vector<std::string> kCaching = {"caching"}, kBoth = {"caching", "expandable"};

void ExpectSame(const JobData& data, const v1::Layout& layout, const std::string& what,
                const std::vector<std::string>& allocators = kCaching) {
  const JobResult planned = TrainLayout(data, layout, kSteps, kInTurns);
  for (const std::string& allocator : allocators) ExpectAs(planned, data, layout, allocator, what);
}

TEST(CachingBitwiseTest, EveryPrecisionAndRecompute) {
  for (const char* family : {"gpt2", "qwen3"}) {
    const JobData data = DataOf(family);
    for (const char* precision : {"fp32", "bf16"}) {
      for (const char* recompute : {"none", "selective", "block"}) {
        v1::Layout layout = Planned(precision);
        layout.set_recompute(recompute);
        ExpectSame(data, layout, absl::StrCat(family, " ", precision, " ", recompute));
      }
    }
  }
}

TEST(CachingBitwiseTest, StatesOnOtherTiers) {
  const JobData data = DataOf("llama");
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    v1::Layout layout = Planned("bf16");
    PutStatesOn(tier, &layout);
    PutOn(tier, layout.mutable_offload()->mutable_activation());
    ExpectSame(data, layout, v1::Tier_Name(tier), kBoth);
  }
}

TEST(CachingBitwiseTest, RanksThatShareTheStates) {
  const JobData data = DataOf("llama");
  for (const uint32_t zero : {0, 2, 3}) {
    v1::Layout layout = Planned();
    layout.set_data_parallel(2);
    layout.set_zero_stage(zero);
    ExpectSame(data, layout, absl::StrCat("zero ", zero), kBoth);
  }
  v1::Layout layout = Planned("bf16");
  layout.set_data_parallel(2);
  layout.set_zero_stage(3);
  layout.set_recompute("block");
  PutStatesOn(v1::HOST, &layout);
  ExpectSame(data, layout, "zero 3, block, host");
}

TEST(CachingBitwiseTest, OtherWaysToSplitAStep) {
  const JobData data = DataOf("qwen3");
  std::vector<v1::Layout> layouts(3, Planned());
  layouts[0].set_pipeline_parallel(2);
  layouts[0].set_schedule("1f1b");
  layouts[1].set_tensor_parallel(2);
  layouts[2].set_context_parallel(2);
  for (const v1::Layout& layout : layouts) ExpectSame(data, layout, layout.ShortDebugString());
}

// Where gradients come and go within a step.
TEST(CachingBitwiseTest, UpdatesAtOnce) {
  JobData data = DataOf("llama");
  data.train.set_clip_grad_norm(0);
  std::vector<v1::Layout> layouts(6, Planned());
  for (v1::Layout& layout : layouts) {
    layout.set_schedule("breadth_first");
    layout.set_interleave(3);
  }
  layouts[0].set_schedule("1f1b");
  layouts[0].set_interleave(1);
  layouts[0].set_bucket_bytes(1);
  layouts[2].set_data_parallel(2);
  layouts[3].set_data_parallel(2);
  layouts[3].set_zero_stage(3);
  PutStatesOn(v1::HOST, &layouts[3]);
  PutStatesOn(v1::NVME, &layouts[4]);
  PutOn(v1::HOST, layouts[4].mutable_offload()->mutable_activation());
  layouts[4].set_recompute("block");
  layouts[5].set_pipeline_parallel(2);
  layouts[5].set_interleave(1);
  for (const v1::Layout& layout : layouts) {
    ASSERT_TRUE(UpdatesAtOnce(layout, 0));
    ExpectSame(data, layout, layout.ShortDebugString(), kBoth);
  }
}

// Without the gradients of all layers but two the allocator reserves less, too.
TEST(CachingBitwiseTest, WhatIsUsedUpAtOnceIsReservedNoMore) {
  constexpr int64_t kLayers = 8;
  JobData data = {.model = TinyModel("llama", {.vocabulary = 331,
                                               .hidden = 256,
                                               .layers = kLayers,
                                               .intermediate = 1024,
                                               .sequence = 16}),
                  .rows = 8,
                  .length = 16,
                  .train = TinySpec(16).train()};
  v1::Layout layout = Planned();
  layout.set_schedule("breadth_first");
  layout.set_interleave(kLayers);
  int64_t gradients = 0;
  for (const Tensor& tensor : data.model.tensors) gradients += 4 * tensor.elements();
  for (const std::string allocator : {"planned", "caching", "expandable"}) {
    layout.set_allocator(allocator);
    std::vector<int64_t> bytes;
    for (const double clip : {0.0, 1.0}) {
      data.train.set_clip_grad_norm(clip);
      const auto programs = CompileJob(data, layout);
      ASSERT_TRUE(programs.ok()) << programs.status();
      bytes.push_back(ReservedBytesNeeded(programs->at(0), v1::DEVICE));
    }
    // Segments of fixed sizes keep what other sizes cannot use.
    EXPECT_LT(bytes[0], bytes[1] - (allocator == "caching" ? 0 : gradients / 2)) << allocator;
  }
}

// The choices of the allocator do not depend on which stream is ahead.
TEST(CachingBitwiseTest, FiguresAreTheSameInEveryRun) {
  const JobData data = DataOf("llama");
  v1::Layout layout = Planned();
  layout.set_allocator("caching");
  layout.set_data_parallel(2);
  layout.set_zero_stage(3);
  PutStatesOn(v1::HOST, &layout);
  const JobResult first = TrainLayout(data, layout, kSteps);
  ASSERT_EQ(first.allocator.size(), 2u);
  for (int run = 0; run < 3; ++run) {
    const JobResult again = TrainLayout(data, layout, kSteps);
    for (const v1::AllocatorStats& stats : again.allocator)
      EXPECT_EQ(stats.SerializeAsString(), first.allocator[0].SerializeAsString());
  }
}

}  // namespace
}  // namespace terrace
