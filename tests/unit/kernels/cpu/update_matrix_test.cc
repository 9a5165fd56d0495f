// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

// One matrix and its moment.
struct State {
  int64_t rows = 0, columns = 0;
  std::vector<float> param, m;

  State(int64_t r, int64_t c) : rows(r), columns(c), param(r * c), m(r * c) {}

  void Step(std::vector<float> grad, std::vector<float> scale, float weight_decay = 0,
            int threads = 1) {
    const UpdateAttrs attrs = {.rule = OptimizerRule::kMuon,
                               .beta1 = 0.95f,
                               .epsilon = 1e-7f,
                               .weight_decay = weight_decay,
                               .iterations = 5};
    std::vector<float> schedule = {1, 1, 1, 0};
    const auto view = [&](std::vector<float>& x) {
      return ViewOf(DType::kF32, x.data(), {rows, columns});
    };
    const Status status = Launch(
        Op::kUpdateMatrix, attrs,
        {view(grad), view(param), view(m), TensorView(), ViewOf(scale), ViewOf(schedule)}, threads);
    EXPECT_TRUE(status.ok()) << status.message;
  }
};

std::vector<float> Random(int64_t elements) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (float& value : values) value = normal(random);
  return values;
}

const std::vector<float> kAsItIs = {1, 0, 0, 0};

// Of a square matrix of independent numbers all but the smallest singular values come near 1, so
// that the mean square of a row's product with itself does, and rows are nearly at right angles.
TEST(UpdateMatrixTest, AStepIsNearlyOrthogonal) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{32, 96}, {96, 32}, {64, 64}}) {
    State state(rows, columns);
    state.Step(Random(rows * columns), kAsItIs);
    double squares = 0;
    for (const float value : state.param) squares += double{value} * value;
    const double each = squares / static_cast<double>(std::min(rows, columns));
    EXPECT_NEAR(each, 0.8, 0.25) << rows << " x " << columns;  // of the squared singular values
    const bool wide = rows <= columns;
    const int64_t side = std::min(rows, columns), length = std::max(rows, columns);
    if (side == length) continue;
    for (int64_t i = 0; i < side; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < length; ++k) {
          const auto at = [&](int64_t line) {
            return double{state.param[wide ? line * columns + k : k * columns + line]};
          };
          dot += at(i) * at(j);
        }
        EXPECT_LT(std::abs(dot), 0.35) << rows << " x " << columns << ": " << i << ", " << j;
      }
    }
  }
}

// The length of the gradient is of no account to the step, but it is to the moment.
TEST(UpdateMatrixTest, OnlyTheDirectionOfAGradientCounts) {
  State one(48, 40), other(48, 40);
  const std::vector<float> grad = Random(48 * 40);
  one.Step(grad, kAsItIs);
  other.Step(grad, {1024, 0, 0, 0});
  EXPECT_EQ(one.param, other.param);
  EXPECT_EQ(one.m[5] * 1024, other.m[5]);
}

TEST(UpdateMatrixTest, ASkippedStepChangesNothing) {
  State state(3, 4);
  state.param.assign(12, 0.5f);
  state.Step(std::vector<float>(12, std::numeric_limits<float>::quiet_NaN()), {0, 0, 0, 1}, 0.1f);
  EXPECT_EQ(state.param, std::vector<float>(12, 0.5f));
  EXPECT_EQ(state.m, std::vector<float>(12, 0.0f));
}

TEST(UpdateMatrixTest, WithoutAGradientWeightsOnlyDecay) {
  State state(3, 4);
  state.param.assign(12, 0.5f);
  state.Step(std::vector<float>(12, 0.0f), kAsItIs, 0.25f);
  EXPECT_EQ(state.param, std::vector<float>(12, 0.375f));
}

TEST(UpdateMatrixTest, ThreadsChangeNoBit) {
  State one(300, 257), three(300, 257);
  const std::vector<float> grad = Random(300 * 257);
  for (int step = 0; step < 2; ++step) {
    one.Step(grad, kAsItIs, 0.1f, 1);
    three.Step(grad, kAsItIs, 0.1f, 3);
  }
  EXPECT_EQ(one.param, three.param);
  EXPECT_EQ(one.m, three.m);
}

}  // namespace
}  // namespace terrace::kernels::cpu
