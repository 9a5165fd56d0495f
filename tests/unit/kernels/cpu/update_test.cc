// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

struct State {
  std::vector<float> param, m, v;

  explicit State(std::vector<float> p) : param(std::move(p)), m(param.size()), v(param.size()) {}
  void Step(std::vector<float> grad, std::vector<float> scale, std::vector<float> schedule) {
    const UpdateAttrs attrs = {
        .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
    EXPECT_TRUE(
        Launch(Op::kUpdate, attrs,
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
    ASSERT_TRUE(Launch(Op::kUpdate, UpdateAttrs{},
                       {view(grad), view(param), view(m), view(v), ViewOf(scale), ViewOf(schedule)})
                    .ok());
    for (int64_t i = 0; i < n + 16; ++i) EXPECT_EQ(param[i] != 1.0f, i < n) << n << " " << i;
  }
}

// The four streams of one update, `shift` elements into their memory.
struct Streams {
  std::vector<float> grad, param, m, v;
  int64_t shift = 0;

  // Numbers of very different size, zeros and denormals among them; v is never negative.
  static Streams Random(int64_t count, int64_t shift) {
    std::mt19937 random(11);
    const auto draw = [&random] {
      if (random() % 16 == 0) return 0.0f;
      const float mantissa = 1.0f + static_cast<float>(random() % 8388608) / 8388608.0f;
      const float value = std::ldexp(mantissa, static_cast<int>(random() % 150) - 140);
      return random() % 2 == 0 ? value : -value;
    };
    Streams streams;
    streams.shift = shift;
    for (auto* stream : {&streams.grad, &streams.param, &streams.m, &streams.v}) {
      stream->resize(count + shift);
    }
    for (int64_t i = shift; i < count + shift; ++i) {
      streams.grad[i] = draw();
      streams.param[i] = draw();
      streams.m[i] = draw();
      streams.v[i] = std::abs(draw());
    }
    return streams;
  }

  int64_t count() const { return static_cast<int64_t>(grad.size()) - shift; }

  void Step(int64_t first, int64_t elements, int threads) {
    std::vector<float> scale = {0.37f, 0, 0, 0}, schedule = ScheduleOf(3);
    const auto part = [&](std::vector<float>& x) {
      return ViewOf(DType::kF32, x.data() + shift + first, {elements});
    };
    ASSERT_TRUE(Launch(Op::kUpdate, Attrs(),
                       {part(grad), part(param), part(m), part(v), ViewOf(scale), ViewOf(schedule)},
                       threads)
                    .ok());
  }

  static UpdateAttrs Attrs() {
    return {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
  }

  // The bits of every result: NaN is like NaN, -0 is not like 0.
  std::vector<uint32_t> Bits() const {
    std::vector<uint32_t> bits;
    for (const auto* stream : {&param, &m, &v}) {
      for (int64_t i = shift; i < count() + shift; ++i) {
        bits.push_back(std::bit_cast<uint32_t>((*stream)[i]));
      }
    }
    return bits;
  }
};

// Each operation of the update rounded once, in the kernel's order.
void StepByScalars(Streams& s) {
  const bool fused = std::string_view(InstructionSet()) != "sse4";
  const auto mul_add = [fused](float a, float b, float c) {
    const float product = a * b;
    return fused ? std::fma(a, b, c) : product + c;
  };
  const UpdateAttrs attrs = Streams::Attrs();
  const std::vector<float> schedule = ScheduleOf(3);
  const double rate = schedule[0];
  const auto decay = static_cast<float>(1.0 - rate * attrs.weight_decay);
  const auto inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(double{schedule[2]}));
  const auto minus_step_size = static_cast<float>(-rate / schedule[1]);
  const auto one_minus_beta1 = static_cast<float>(1.0 - attrs.beta1);
  const auto one_minus_beta2 = static_cast<float>(1.0 - attrs.beta2);
  for (size_t i = s.shift; i < s.grad.size(); ++i) {
    const float g = s.grad[i] * 0.37f;
    const float decayed = s.param[i] * decay;
    const float difference = g - s.m[i];
    s.m[i] = mul_add(one_minus_beta1, difference, s.m[i]);
    const float weighted = one_minus_beta2 * g;
    const float kept = s.v[i] * attrs.beta2;
    s.v[i] = mul_add(weighted, g, kept);
    const float root = std::sqrt(s.v[i]);
    const float denominator = mul_add(root, inverse_sqrt_correction2, attrs.epsilon);
    const float quotient = s.m[i] / denominator;
    s.param[i] = mul_add(minus_step_size, quotient, decayed);
  }
}

TEST(AdamwTest, EachOperationIsRoundedOnce) {
  Streams got = Streams::Random(100'003, 0);
  Streams want = got;
  got.Step(0, got.count(), 1);
  StepByScalars(want);
  EXPECT_EQ(got.Bits(), want.Bits());
}

TEST(AdamwTest, ThreadsChangeNoBit) {
  Streams one = Streams::Random(300'007, 0);
  Streams two = one, three = one;
  one.Step(0, one.count(), 1);
  two.Step(0, two.count(), 2);
  three.Step(0, three.count(), 3);
  EXPECT_EQ(one.Bits(), two.Bits());
  EXPECT_EQ(one.Bits(), three.Bits());
}

TEST(AdamwTest, ChunksOfAnySizeChangeNoBit) {
  Streams whole = Streams::Random(70'001, 0);
  const Streams start = whole;
  whole.Step(0, whole.count(), 1);
  for (int64_t chunk : {7, 64, 1'000, 4'096, 5'001, 65'536}) {
    Streams chunked = start;
    for (int64_t first = 0; first < chunked.count(); first += chunk) {
      chunked.Step(first, std::min(chunk, chunked.count() - first), 2);
    }
    EXPECT_EQ(chunked.Bits(), whole.Bits()) << chunk;
  }
}

TEST(AdamwTest, AlignmentChangesNoBit) {
  Streams aligned = Streams::Random(10'007, 0);
  aligned.Step(0, aligned.count(), 1);
  for (int64_t shift = 1; shift <= 17; ++shift) {
    Streams shifted = Streams::Random(10'007, shift);
    shifted.Step(0, shifted.count(), 1);
    EXPECT_EQ(shifted.Bits(), aligned.Bits()) << shift;
  }
}

TEST(AdamwTest, InfinityAndNaNStayWithTheirElement) {
  Streams clean = Streams::Random(1'000, 0);
  Streams dirty = clean;
  dirty.grad[500] = std::numeric_limits<float>::infinity();
  dirty.grad[503] = NAN;
  clean.Step(0, clean.count(), 1);
  dirty.Step(0, dirty.count(), 1);
  for (int64_t i = 0; i < clean.count(); ++i) {
    const bool hit = i == 500 || i == 503;
    EXPECT_EQ(std::isfinite(dirty.v[i]), !hit) << i;
    EXPECT_TRUE(hit || dirty.param[i] == clean.param[i]) << i;
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
