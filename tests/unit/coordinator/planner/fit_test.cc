// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/fit.h"

#include <gtest/gtest.h>

#include <optional>

#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// GPT-2 small: 124 million parameters, 475 MiB of each state in f32.
class FitTest : public testing::Test {
 protected:
  FitTest()
      : spec_(TinySpec()),
        model_(BuildModel(*ParseModelConfig(FindPreset("gpt2")->config_json, 128))) {
    spec_.mutable_data()->set_sequence_length(128);
    layout_ = TinyLayout({.precision = "bf16"});
    layout_.set_micro_batch(1);
    layout_ = Completed(layout_);
  }

  std::optional<v1::Layout> Fitted(OffloadWay way, int64_t device_mib, int64_t host_mib,
                                   const v1::Offload& pinned = {}) const {
    return WithOffload(MemoryEstimator(EstimateModel(spec_, model_)), layout_, pinned, way,
                       {.device_bytes = device_mib * kMiB, .host_bytes = host_mib * kMiB});
  }
  MemoryEstimate MemoryOf(const v1::Layout& layout) const {
    return MemoryEstimator(EstimateModel(spec_, model_)).Memory(layout);
  }

  v1::JobSpec spec_;
  Model model_;
  v1::Layout layout_;
};

TEST_F(FitTest, TheDeviceIsUsedFirstThenTheHostAndNvmeHasTheRest) {
  const int64_t resident = MemoryOf(layout_).total() / kMiB;
  const auto fitted = Fitted(OffloadWay::kOptimizerToNvme, resident - 400, 512);
  ASSERT_TRUE(fitted.has_value());
  const v1::TierShares& optimizer = fitted->offload().optimizer();
  EXPECT_GT(optimizer.device(), 0.3);
  EXPECT_GT(optimizer.host(), 0);
  EXPECT_GT(optimizer.nvme(), 0);
  const MemoryEstimate memory = MemoryOf(*fitted);
  EXPECT_LE(memory.total(), (resident - 400) * kMiB);
  EXPECT_LE(memory.host_bytes, 512 * kMiB);
  // One 64th more on the device would not fit any more.
  v1::Layout more = *fitted;
  v1::TierShares* shares = more.mutable_offload()->mutable_optimizer();
  shares->set_device(optimizer.device() + 1.0 / 64);
  shares->set_host(optimizer.host() - 1.0 / 64);
  more.mutable_offload()->clear_gradient();
  EXPECT_GT(MemoryOf(Completed(more)).total(), (resident - 400) * kMiB);
}

TEST_F(FitTest, WeightsStayBeforeTheStatesOfTheOptimizer) {
  const int64_t resident = MemoryOf(layout_).total() / kMiB;
  // Gradients and half of the moments away are more than the host has.
  const auto some_states = Fitted(OffloadWay::kAllToNvme, resident - 600, 160);
  ASSERT_TRUE(some_states.has_value());
  EXPECT_EQ(some_states->offload().parameter().device(), 1);
  EXPECT_GT(some_states->offload().optimizer().device(), 0);
  EXPECT_GT(some_states->offload().optimizer().nvme(), 0);
  const auto some_weights = Fitted(OffloadWay::kAllToNvme, resident - 1500, 160);
  ASSERT_TRUE(some_weights.has_value());
  EXPECT_EQ(some_weights->offload().optimizer().nvme(), 1);
  EXPECT_GT(some_weights->offload().parameter().device(), 0);
  EXPECT_LT(some_weights->offload().parameter().device(), 1);
}

TEST_F(FitTest, WhatIsPinnedStaysWhereItIs) {
  v1::Offload pinned;
  pinned.mutable_optimizer()->set_nvme(1);
  const auto fitted = Fitted(OffloadWay::kOptimizerToNvme, 8192, 2048, pinned);
  ASSERT_TRUE(fitted.has_value());
  EXPECT_EQ(fitted->offload().optimizer().nvme(), 1);
}

}  // namespace
}  // namespace terrace
