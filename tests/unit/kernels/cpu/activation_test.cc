// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double TwoU(double x) { return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
double GeluRef(double x) { return x * Sigmoid(TwoU(x)); }
double ErfGeluRef(double x) { return x / 2 * std::erfc(-x * M_SQRT1_2); }
double ErfGeluSlopeRef(double x) {
  return std::erfc(-x * M_SQRT1_2) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}
double GeluSlopeRef(double x) {
  const double s = Sigmoid(TwoU(x));
  return s + x * s * Sigmoid(-TwoU(x)) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// -20 to 20 in steps that hit no round numbers, then the ends of the range.
std::vector<float> Sweep() {
  std::vector<float> x;
  for (int i = -20000; i <= 20000; ++i) x.push_back(static_cast<float>(i) * 1.0007e-3f);
  for (float large : {30.0f, 87.0f, 88.5f, 1e3f, 1e10f, 1e13f}) {
    x.push_back(large);
    x.push_back(-large);
  }
  return x;
}

// Relative to the value, or absolute where that is below 0.01: there the argument's own rounding,
// multiplied by the exponential, is all that the error is.
void ExpectAccurate(const std::vector<float>& x, const std::vector<float>& y,
                    const std::function<double(double)>& reference) {
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = reference(x[i]);
    ASSERT_NEAR(y[i], want, 1e-6 * std::max(std::abs(want), 1e-2)) << "x = " << x[i];
  }
}

TEST(GeluTest, IsAccurateOverTheWholeRange) {
  std::vector<float> x = Sweep(), y(x.size());
  ASSERT_TRUE(Launch(Op::kGelu, ActivationAttrs{}, {ViewOf(x), ViewOf(y)}).ok());
  ExpectAccurate(x, y, GeluRef);
  const ActivationAttrs erf = {Activation::kGelu};
  ASSERT_TRUE(Launch(Op::kGelu, erf, {ViewOf(x), ViewOf(y)}).ok());
  ExpectAccurate(x, y, ErfGeluRef);
}

TEST(GeluTest, GradientIsAccurateOverTheWholeRange) {
  std::vector<float> x = Sweep(), dy(x.size(), 1.0f), dx(x.size());
  using Case = std::pair<Activation, double (*)(double)>;
  for (const auto& [activation, slope] :
       {Case(Activation::kGeluTanh, GeluSlopeRef), Case(Activation::kGelu, ErfGeluSlopeRef)}) {
    const ActivationAttrs attrs = {activation};
    ASSERT_TRUE(Launch(Op::kGeluGrad, attrs, {ViewOf(dy), ViewOf(x), ViewOf(dx)}).ok());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(dx[i], slope(x[i]), 1e-6) << "x = " << x[i];
    }
  }
}

TEST(GeluTest, NotANumberStaysOne) {
  std::vector<float> x(40, std::numeric_limits<float>::quiet_NaN()), y(40), dy(40, 1.0f), dx(40);
  for (const Activation activation :
       {Activation::kGeluTanh, Activation::kGelu, Activation::kRelu, Activation::kSilu}) {
    const ActivationAttrs attrs = {activation};
    ASSERT_TRUE(Launch(Op::kGelu, attrs, {ViewOf(x), ViewOf(y)}).ok());
    ASSERT_TRUE(Launch(Op::kGeluGrad, attrs, {ViewOf(dy), ViewOf(x), ViewOf(dx)}).ok());
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(std::isnan(y[i]) && std::isnan(dx[i])) << i;
  }
}

TEST(SwigluTest, IsAccurateOverTheWholeRange) {
  std::vector<float> gate = Sweep(), up(gate.size(), 1.0f), y(gate.size());
  const int64_t n = static_cast<int64_t>(gate.size());
  const auto row = [n](std::vector<float>& v) { return ViewOf(DType::kF32, v.data(), {1, n}); };
  const ActivationAttrs silu = {Activation::kSilu};
  ASSERT_TRUE(Launch(Op::kSwiglu, silu, {row(gate), row(up), row(y)}).ok());
  ExpectAccurate(gate, y, [](double x) { return x * Sigmoid(x); });
}

}  // namespace
}  // namespace terrace::kernels::cpu
