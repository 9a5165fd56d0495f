// Learning without fp32 master weights: the course of the loss with stochastic rounding beside that
// with fp32 master weights.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 120;

// Weights of 0.02, whose last bit in bf16 is worth 6e-5 to 1.2e-4, and updates of at most 2e-4.
JobData DataOf(const std::string& family) {
  JobData data = RandomJob(MatrixModel(family), /*rows=*/8, /*length=*/16);
  data.train.mutable_optimizer()->set_lr(2e-4);
  data.train.set_steps(10 * kSteps);  // of the schedule: it hardly falls
  return data;
}

v1::Layout InBf16(bool stochastic) {
  v1::Layout layout = MatrixLayout();
  layout.set_precision("bf16");
  layout.set_micro_batches(2);
  layout.set_stochastic_rounding(stochastic);
  return layout;
}

TEST(RoundingCurveTest, TheLossFallsAsWithMasterWeights) {
  for (const char* family : {"gpt2", "llama"}) {
    const JobData data = DataOf(family);
    const JobResult master = TrainLayout(data, InBf16(false), kSteps);
    const JobResult rounded = TrainLayout(data, InBf16(true), kSteps);
    const double fallen = master.losses.front() - master.losses.back();
    EXPECT_GT(fallen, 0.5) << family;
    double largest = 0;
    for (int64_t i = 0; i < kSteps; ++i) {
      largest = std::max(largest, std::abs(rounded.losses[i] - master.losses[i]));
    }
    EXPECT_LT(largest, 0.01 * fallen) << family;
  }
}

}  // namespace
}  // namespace terrace
