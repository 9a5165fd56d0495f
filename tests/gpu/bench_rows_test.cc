// What is measured of a case and how it is judged, on a machine whose speed the test plays.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/bench_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace terrace::kernels::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kFlopRate = 100e12;  // of this machine, without wgmma

class FakeGpu final : public Machine {
 public:
  std::string name() const override { return device; }
  bool is_gpu() const override { return true; }
  bool Has(Op) const override { return true; }
  bool has_wgmma() const override { return true; }
  void UseWgmma(bool use) override { wgmma = use; }
  Status Prepare(const Case& c) override {
    prepared.push_back(c.name + (wgmma ? " on wgmma" : ""));
    flops = static_cast<double>(Flops(c.op, c.attrs, c.operands));
    speed = wgmma ? wgmma_speed[c.op] : 1;
    return {};
  }
  Status Time(int calls, double* seconds) override {
    if (fails) return {"the kernel: an illegal instruction"};
    calls_at_once = calls;
    *seconds = flops / (kFlopRate * speed);
    return {};
  }
  Status TimeLibrary(int, double* seconds) override {
    *seconds = flops / (kFlopRate * library_speed);
    return {};
  }
  Status CopyRate(int64_t, double* rate) override {
    *rate = 1e12;
    return {};
  }

  std::string device = "NVIDIA H100 80GB HBM3, sm_90, 132 SMs";
  std::map<Op, double> wgmma_speed = {{Op::kAttention, 7}, {Op::kAttentionGrad, 0.5}};
  double library_speed = 1;
  bool fails = false, wgmma = false;
  std::vector<std::string> prepared;
  int calls_at_once = 0;
  double flops = 0, speed = 1;
};

Case CaseOf(const std::string& name) {
  for (const Case& c : AllCases(/*small=*/false)) {
    if (c.name == name) return c;
  }
  ADD_FAILURE() << name;
  return {};
}
const char kForward[] = "attention 2x8192 heads 16/16 size 128";
const char kGrad[] = "attention grad 2x8192 heads 16/16 size 128";
const char kNorm[] = "rms_norm";  // any case that is no attention, by a part of its name

class BenchRowsTest : public testing::Test {
 protected:
  BenchRowsTest() : cases_{CaseOf(kForward), CaseOf(kGrad)} {
    for (const Case& c : AllCases(false)) {
      if (c.name.find(kNorm) == std::string::npos) continue;
      cases_.insert(cases_.begin(), c);
      break;
    }
  }
  void MeasureAll() {
    for (const Case& c : cases_)
      ASSERT_TRUE(MeasureCase(c, 1e12, &gpu_, &rows_.emplace_back()).ok());
  }
  const Row& RowOf(const std::string& name) {
    for (const Row& row : rows_) {
      if (row.name == name) return row;
    }
    ADD_FAILURE() << name;
    return rows_.front();
  }
  double Later() { return Now() + 100; }

  FakeGpu gpu_;
  std::vector<Case> cases_;
  std::vector<Row> rows_;
};

TEST_F(BenchRowsTest, ARateIsThatOfTheWorkAndJudgedOnItsGpusOnly) {
  Row row;
  ASSERT_TRUE(MeasureCase(cases_.back(), 0, &gpu_, &row).ok());
  EXPECT_NEAR(row.rate, kFlopRate, 1e6);
  EXPECT_TRUE(row.judged);
  EXPECT_FALSE(row.passed) << "100 of 450 TFLOP/s";
  gpu_.device = "NVIDIA A100";
  ASSERT_TRUE(MeasureCase(cases_.back(), 0, &gpu_, &row).ok());
  EXPECT_FALSE(row.judged);
  EXPECT_TRUE(row.passed);
}

TEST_F(BenchRowsTest, AProductIsHeldToAShareOfTheLibrarysBest) {
  int products = 0;
  for (const Case& c : AllCases(false)) {
    if (c.measure != Measure::kLibrary) continue;
    ++products;
    Row row;
    gpu_.library_speed = 1.04;
    ASSERT_TRUE(MeasureCase(c, 0, &gpu_, &row).ok());
    EXPECT_TRUE(row.judged && row.passed) << c.name;
    gpu_.library_speed = 1.06;
    ASSERT_TRUE(MeasureCase(c, 0, &gpu_, &row).ok());
    EXPECT_TRUE(row.judged && !row.passed) << c.name;
    EXPECT_NEAR(row.compared, 1.06 * kFlopRate, 1e6);
  }
  EXPECT_GT(products, 0);
}

TEST_F(BenchRowsTest, OnWgmmaAttentionIsMeasuredOnceMoreAndNothingElse) {
  MeasureAll();
  gpu_.prepared.clear();
  ASSERT_TRUE(MeasureWgmma(cases_, Later(), &gpu_, &rows_).ok());
  EXPECT_THAT(gpu_.prepared,
              ElementsAre(std::string(kForward) + " on wgmma", std::string(kGrad) + " on wgmma"));
  EXPECT_EQ(rows_.size(), cases_.size() + 2);
  EXPECT_NEAR(RowOf(std::string(kForward) + " (wgmma)").rate, 7 * kFlopRate, 1e6);
  EXPECT_FALSE(gpu_.wgmma) << "what comes after it is as before";
}

TEST_F(BenchRowsTest, OfTheTwoWaysTheFasterIsJudged) {
  MeasureAll();
  EXPECT_FALSE(RowOf(kForward).passed);
  ASSERT_TRUE(MeasureWgmma(cases_, Later(), &gpu_, &rows_).ok());
  EXPECT_FALSE(RowOf(kForward).judged);
  EXPECT_TRUE(RowOf(kForward).passed) << "it counts no more";
  const Row& fast = RowOf(std::string(kForward) + " (wgmma)");
  EXPECT_TRUE(fast.judged && fast.passed) << "700 of 600 TFLOP/s";
  const Row& slow = RowOf(std::string(kGrad) + " (wgmma)");
  EXPECT_TRUE(!slow.judged && slow.passed);
  EXPECT_TRUE(RowOf(kGrad).judged && !RowOf(kGrad).passed);
}

TEST_F(BenchRowsTest, WhatHasNoTimeOrFailsIsNamed) {
  MeasureAll();
  EXPECT_THAT(MeasureWgmma(cases_, Now() - 1, &gpu_, &rows_).message,
              HasSubstr(std::string("no time is left for ") + kForward));
  gpu_.fails = true;
  EXPECT_THAT(MeasureWgmma(cases_, Later(), &gpu_, &rows_).message,
              HasSubstr(std::string(kForward) + ": the kernel: an illegal instruction"));
  EXPECT_EQ(rows_.size(), cases_.size());
  EXPECT_FALSE(gpu_.wgmma);
}

TEST_F(BenchRowsTest, ARoundTakesAsManyCallsAsFitIntoItsTime) {
  Row row;
  const Case& c = cases_.back();
  ASSERT_TRUE(MeasureCase(c, 0, &gpu_, &row).ok());
  EXPECT_EQ(gpu_.calls_at_once, std::clamp(static_cast<int>(0.05 / row.seconds), 1, 200));
  EXPECT_GT(gpu_.calls_at_once, 1);
}

}  // namespace
}  // namespace terrace::kernels::bench
