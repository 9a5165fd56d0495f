// Learning with less than f32: the course of the loss beside that of the same job with master
// weights and gradients in f32.
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

void ExpectFallsAlike(const JobResult& rounded, const JobResult& exact, const std::string& what) {
  const double fallen = exact.losses.front() - exact.losses.back();
  EXPECT_GT(fallen, 0.5) << what;
  double largest = 0;
  for (int64_t i = 0; i < kSteps; ++i) {
    largest = std::max(largest, std::abs(rounded.losses[i] - exact.losses[i]));
  }
  EXPECT_GT(largest, 0) << what << ": nothing was rounded";
  EXPECT_LT(largest, 0.01 * fallen) << what;
}

TEST(RoundingCurveTest, TheLossFallsAsInF32) {
  for (const std::string family : {"gpt2", "llama"}) {
    const JobData data = DataOf(family);
    const JobResult exact = TrainLayout(data, InBf16(false), kSteps);
    ExpectFallsAlike(TrainLayout(data, InBf16(true), kSteps), exact, family + ", weights");
    for (const bool stochastic : {false, true}) {
      v1::Layout layout = InBf16(stochastic);
      layout.set_gradient_format("bf16");
      ExpectFallsAlike(TrainLayout(data, layout, kSteps), exact,
                       family + (stochastic ? ", weights and gradients" : ", gradients"));
    }
  }
}

}  // namespace
}  // namespace terrace
