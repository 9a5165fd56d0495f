// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

UpdateAttrs Adafactor() {
  return {.rule = OptimizerRule::kAdafactor,
          .beta1 = 0,
          .beta2 = 0,
          .epsilon = 1e-30f,
          .clip_threshold = 1};
}

UpdateAttrs Came() {
  return {.rule = OptimizerRule::kCame,
          .beta1 = 0.9f,
          .epsilon = 1e-30f,
          .clip_threshold = 1,
          .beta3 = 0.9999f,
          .error_epsilon = 1e-16f};
}

// A matrix, or a vector where there is one row, and its states.
struct State {
  int64_t r = 0, c = 0;
  UpdateAttrs attrs;
  std::vector<float> param, m, v, rows, columns, error_rows, error_columns;

  State(int64_t r, int64_t c, const UpdateAttrs& attrs)
      : r(r),
        c(c),
        attrs(attrs),
        param(r * c),
        m(r * c),
        v(r == 1 ? c : 0),
        rows(r),
        columns(c),
        error_rows(r),
        error_columns(c) {}

  void Step(std::vector<float> grad, std::vector<float> scale = {1, 0, 0, 0}, float apart = 1,
            int threads = 1) {
    std::vector<float> schedule = {1, 1, apart, 0};
    const bool came = attrs.rule == OptimizerRule::kCame, vector = r == 1;
    const auto view = [&](std::vector<float>& x) { return ViewOf(DType::kF32, x.data(), {r, c}); };
    const auto means = [&](std::vector<float>& x, bool there) {
      return there ? ViewOf(x) : TensorView();
    };
    const Status status =
        Launch(Op::kUpdateFactored, attrs,
               {view(grad), view(param), came || attrs.beta1 > 0 ? view(m) : TensorView(),
                vector ? view(v) : TensorView(), means(rows, !vector), means(columns, !vector),
                means(error_rows, came && !vector), means(error_columns, came && !vector),
                ViewOf(scale), ViewOf(schedule)},
               threads);
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

double RootMeanSquare(const std::vector<float>& x) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  return std::sqrt(squares / static_cast<double>(x.size()));
}

// |g| = a b of a matrix whose means tell all: then every element moves by one.
TEST(UpdateFactoredTest, AProductOfARowAndAColumnIsDividedByItself) {
  State state(3, 4, Adafactor());
  std::vector<float> grad;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j)
      grad.push_back(static_cast<float>((i + 1) * (j + 2) * (j % 2 ? 1 : -1)));
  }
  state.Step(grad);
  for (int i = 0; i < 12; ++i) EXPECT_NEAR(state.param[i], i % 2 == 0 ? 1 : -1, 1e-6) << i;
}

TEST(UpdateFactoredTest, AVectorIsDividedByTheRootsOfItsSquares) {
  State state(1, 4, Adafactor());
  state.Step({1, -2, 3e-6f, -4e6f});
  EXPECT_EQ(state.param, std::vector<float>({-1, 1, -1, 1}));
}

// Means remember small squares, so that a gradient that is a thousand times larger makes a large
// step, which is cut down.
TEST(UpdateFactoredTest, AStepIsNoLargerThanTheThreshold) {
  for (const float clip : {0.0f, 0.5f}) {
    State state(8, 8, Adafactor());
    state.attrs.clip_threshold = clip;
    state.Step(Random(64));
    const std::vector<float> before = state.param;
    state.Step(Random(64), {1000, 0, 0, 0}, /*apart=*/0.01f);
    std::vector<float> step;
    for (size_t i = 0; i < before.size(); ++i) step.push_back(state.param[i] - before[i]);
    const double size = RootMeanSquare(step);
    EXPECT_TRUE(clip > 0 ? std::abs(size - clip) < 1e-5 : size > 5) << size;
  }
}

TEST(UpdateFactoredTest, StepsAreRelativeToTheTensor) {
  for (const float size : {4.0f, 1e-6f}) {
    State state(4, 4, Adafactor());
    state.attrs.least_scale = 0.25f;
    state.param.assign(16, size);
    state.Step(std::vector<float>(16, 1.0f));
    EXPECT_NEAR(state.param[0], size - std::max(size, 0.25f), 1e-6);
  }
}

// Rows of a table that no token meets have no gradient.
TEST(UpdateFactoredTest, RowsAndColumnsWithoutAGradientStay) {
  for (const UpdateAttrs& attrs : {Adafactor(), Came()}) {
    State state(3, 4, attrs);
    state.param.assign(12, 0.5f);
    state.Step({0, 0, 0, 0, 0, 1, 2, 3, 0, 4, 5, 6}, {1, 0, 0, 0}, 0.5f);
    for (int i = 0; i < 12; ++i) {
      EXPECT_TRUE(std::isfinite(state.param[i]));
      EXPECT_EQ(state.param[i] == 0.5f, i < 4 || i % 4 == 0) << i;
    }
  }
}

TEST(UpdateFactoredTest, ASkippedStepChangesNothing) {
  for (const int64_t r : {1, 3}) {
    State state(r, 4, Came());
    state.param.assign(r * 4, 0.5f);
    state.Step(std::vector<float>(r * 4, std::numeric_limits<float>::quiet_NaN()), {0, 0, 0, 1});
    EXPECT_EQ(state.param, std::vector<float>(r * 4, 0.5f));
    for (const auto* zeros : {&state.m, &state.v, &state.rows, &state.columns, &state.error_rows})
      EXPECT_EQ(*zeros, std::vector<float>(zeros->size(), 0.0f));
  }
}

// As in shards that were dealt no tensor.
TEST(UpdateFactoredTest, ZerosStayZeros) {
  for (const float beta1 : {0.0f, 0.9f}) {
    for (UpdateAttrs attrs : {Adafactor(), Came()}) {
      attrs.beta1 = attrs.rule == OptimizerRule::kCame ? 0.9f : beta1;
      attrs.weight_decay = 0.1f;
      for (const float least : {0.0f, 1e-3f}) {
        attrs.least_scale = attrs.rule == OptimizerRule::kCame ? 0 : least;
        State state(3, 4, attrs);
        for (const float apart : {1.0f, 0.5f, 1e-3f})
          state.Step(std::vector<float>(12, 0.0f), {1, 0, 0, 0}, apart);
        EXPECT_EQ(state.param, std::vector<float>(12, 0.0f));
        EXPECT_EQ(state.m, std::vector<float>(12, 0.0f));
        for (const float mean : state.rows) EXPECT_TRUE(std::isfinite(mean));
        for (const float mean : state.error_columns) EXPECT_TRUE(std::isfinite(mean));
      }
    }
  }
}

TEST(UpdateFactoredTest, ThreadsChangeNoBit) {
  for (UpdateAttrs attrs : {Adafactor(), Came()}) {
    attrs.weight_decay = 0.1f;
    State one(1000, 257, attrs), three(1000, 257, attrs);
    const std::vector<float> grad = Random(1000 * 257);
    for (int step = 0; step < 2; ++step) {
      one.Step(grad, {1, 0, 0, 0}, 0.5f, 1);
      three.Step(grad, {1, 0, 0, 0}, 0.5f, 3);
    }
    EXPECT_EQ(one.param, three.param);
    EXPECT_EQ(one.rows, three.rows);
    EXPECT_EQ(one.columns, three.columns);
    EXPECT_EQ(one.error_columns, three.error_columns);
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
