// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

struct State {
  std::vector<float> param, m, v;

  explicit State(std::vector<float> p) : param(std::move(p)), m(param.size()), v(param.size()) {}
  void Step(std::vector<float> grad, std::vector<float> scale, std::vector<float> schedule) {
    const AdamwAttrs attrs = {
        .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
    EXPECT_TRUE(
        Launch(Op::kAdamw, attrs,
               {ViewOf(grad), ViewOf(param), ViewOf(m), ViewOf(v), ViewOf(scale), ViewOf(schedule)})
            .ok());
  }
};

std::vector<float> ScheduleOf(int step) {
  return {0.01f, static_cast<float>(1 - std::pow(0.9, step)),
          static_cast<float>(1 - std::pow(0.95, step)), 0};
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << i;
  }
}

// torch.optim.AdamW([0.5, -1.25, 2, -0.03125, 1e-3], lr=0.01, betas=(0.9, 0.95), eps=1e-8,
// weight_decay=0.1), five steps with gradients g, -g, 3g, -2g, 5g (t g, halved and negated on even
// steps).
TEST(AdamwTest, FollowsPyTorch) {
  State state({0.5f, -1.25f, 2.0f, -0.03125f, 1e-3f});
  for (int step = 1; step <= 5; ++step) {
    std::vector<float> grad = {0.1f, -0.2f, 0.3f, 1e-4f, -2.0f};
    for (float& g : grad) g *= (step % 2 == 1 ? 1.0f : -0.5f) * static_cast<float>(step);
    state.Step(grad, {1, 0, 0, 0}, ScheduleOf(step));
  }
  ExpectNear(state.param, {0.477013707f, -1.22327125f, 1.96952891f, -0.0515839271f, 0.0214863028f});
  ExpectNear(state.m, {0.055571001f, -0.111142002f, 0.166712999f, 5.55709994e-05f, -1.11142004f});
  ExpectNear(state.v, {0.0192971919f, 0.0771887675f, 0.173674732f, 1.92971896e-08f, 7.71887589f});
}

TEST(AdamwTest, MultipliesTheGradientByTheScale) {
  State scaled({1.0f, -2.0f}), plain({1.0f, -2.0f});
  scaled.Step({4.0f, -8.0f}, {0.25f, 0, 0, 0}, ScheduleOf(1));
  plain.Step({1.0f, -2.0f}, {1, 0, 0, 0}, ScheduleOf(1));
  EXPECT_EQ(scaled.param, plain.param);
  EXPECT_EQ(scaled.m, plain.m);
}

TEST(AdamwTest, ASkippedStepChangesNothing) {
  State state({1.0f, -2.0f});
  state.Step({NAN, 1.0f}, {0, 0, 0, 1}, ScheduleOf(1));
  EXPECT_EQ(state.param, (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(state.m, (std::vector<float>{0, 0}));
  EXPECT_EQ(state.v, (std::vector<float>{0, 0}));
}

TEST(AdamwTest, NeighboursBehindTheTailAreNotTouched) {
  for (int64_t n = 1; n <= 33; ++n) {
    std::vector<float> grad(n, 1.0f), param(n + 16, 1.0f), m(n + 16), v(n + 16);
    std::vector<float> scale = {1, 0, 0, 0}, schedule = ScheduleOf(1);
    const auto view = [n](std::vector<float>& x) { return ViewOf(DType::kF32, x.data(), {n}); };
    ASSERT_TRUE(Launch(Op::kAdamw, AdamwAttrs{},
                       {view(grad), view(param), view(m), view(v), ViewOf(scale), ViewOf(schedule)})
                    .ok());
    for (int64_t i = 0; i < n + 16; ++i) EXPECT_EQ(param[i] != 1.0f, i < n) << n << " " << i;
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
