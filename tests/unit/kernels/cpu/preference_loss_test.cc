// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

struct Result {
  std::vector<float> weights, stats, margins;
};

// A pair of sequences of two tokens.
Result LossOf(std::vector<float> losses, std::vector<float> reference, PreferenceAttrs attrs) {
  attrs.sequence = 2;
  Result result = {std::vector<float>(losses.size()), std::vector<float>(2), std::vector<float>(2)};
  const auto view = [](std::vector<float>& values) {
    return ViewOf(DType::kF32, values.data(), {static_cast<int64_t>(values.size())});
  };
  const Status status = Launch(Op::kPreferenceLoss, attrs,
                               {view(losses), view(reference), view(result.weights),
                                view(result.stats), view(result.margins)});
  EXPECT_TRUE(status.ok()) << status.message;
  return result;
}

TEST(PreferenceLossTest, APolicyThatIsItsReferenceHasTheLossOfACoin) {
  const Result result = LossOf({1, 2, 3, 4}, {1, 2, 3, 4}, {.beta = 0.1f});
  EXPECT_FLOAT_EQ(result.stats[0], std::log(2.0f));
  EXPECT_EQ(result.stats[1], 1);
  EXPECT_EQ(result.margins, (std::vector<float>{0, 0})) << "equal rewards are no right answer";
  EXPECT_EQ(result.weights, (std::vector<float>{0.05f, 0.05f, -0.05f, -0.05f}));
}

TEST(PreferenceLossTest, WeightsAreTheSlopesOfTheLoss) {
  const std::vector<float> losses = {0.5f, 1.25f, 2, 0.75f}, reference = {1, 1.5f, 1, 1.125f};
  for (const float smoothing : {0.0f, 0.3f}) {
    const PreferenceAttrs attrs = {.beta = 0.4f, .label_smoothing = smoothing};
    const Result at = LossOf(losses, reference, attrs);
    for (size_t i = 0; i < losses.size(); ++i) {
      constexpr float kStep = 0x1p-6f;
      std::vector<float> more = losses, less = losses;
      more[i] += kStep;
      less[i] -= kStep;
      const float slope =
          (LossOf(more, reference, attrs).stats[0] - LossOf(less, reference, attrs).stats[0]) /
          (2 * kStep);
      EXPECT_NEAR(slope, at.weights[i], 2e-5) << i;
    }
  }
}

TEST(PreferenceLossTest, FarMarginsNeitherOverflowNorLoseTheirSign) {
  const Result wrong = LossOf({5000, 5000, 0, 0}, {0, 0, 0, 0}, {.beta = 1});
  EXPECT_FLOAT_EQ(wrong.stats[0], 10000);
  EXPECT_FLOAT_EQ(wrong.margins[0], -10000);
  EXPECT_EQ(wrong.margins[1], 0);
  EXPECT_FLOAT_EQ(wrong.weights[0], 1);
  const Result right = LossOf({0, 0, 5000, 5000}, {0, 0, 0, 0}, {.beta = 1});
  EXPECT_EQ(right.stats[0], 0);
  EXPECT_EQ(right.margins[1], 1);
  EXPECT_EQ(right.weights[0], 0);
}

}  // namespace
}  // namespace terrace::kernels::cpu
