// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "kernels/rate_class.h"
#include "worker/probe/cache.h"
#include "worker/probe/cases.h"
#include "worker/probe/co_running.h"
#include "worker/probe/kernels.h"
#include "worker/probe/memory.h"
#include "worker/probe/rates.h"
#include "worker/probe/text.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class ProbeCasesTest : public testing::TestWithParam<std::tuple<ProbeDepth, ProbeTarget>> {};

TEST_P(ProbeCasesTest, EveryCaseIsWellFormedAndMeasuresAnotherShape) {
  std::set<std::tuple<std::string, std::string, int64_t, int64_t, int64_t>> seen;
  for (const ProbeCase& one : ProbeCases(std::get<0>(GetParam()), std::get<1>(GetParam()))) {
    ASSERT_THAT(kernels::CheckShapes(one.op, one.attrs, one.operands), IsEmpty());
    EXPECT_GT(kernels::Flops(one.op, one.attrs, one.operands), 0) << kernels::Name(one.op);
    const kernels::RateClass of = kernels::RateClassOf(one.op, one.attrs, one.operands);
    EXPECT_TRUE(seen.insert({of.kernel, of.precision, of.rows, of.columns, of.inner}).second)
        << of.kernel << " " << of.rows << " x " << of.columns << " x " << of.inner;
  }
  for (const char* kernel : {"matmul", "matmul_nt", "matmul_tn", "attention", "attention_grad"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      const auto found = seen.lower_bound({kernel, precision, 0, 0, 0});
      ASSERT_NE(found, seen.end());
      EXPECT_EQ(std::get<0>(*found), kernel);
      EXPECT_EQ(std::get<1>(*found), precision);
    }
  }
}

TEST(ProbeRatesTest, TurnsThatLostTheProcessorDoNotCount) {
  EXPECT_EQ(MeanWithoutExtremes({}), 0);
  EXPECT_EQ(MeanWithoutExtremes({1, 3}), 2);
  EXPECT_EQ(MeanWithoutExtremes({1, 500, 2}), 2);
  // Slow and fast moments both count.
  EXPECT_EQ(MeanWithoutExtremes({1, 3, 1, 3, 500, 1, 3, 1}), 2);
}

TEST(ProbeRatesTest, ARateInTheCacheJoinsThatInMemory) {
  const ProbeCase one = StreamCase(1 << 10);
  v1::HardwareProfile profile;
  AddRate(one, 2e-6, &profile);
  AddCachedRate(one, 1e-6, &profile);
  ASSERT_EQ(profile.kernels_size(), 1);
  EXPECT_DOUBLE_EQ(profile.kernels(0).cached_flops_per_second(),
                   2 * profile.kernels(0).flops_per_second());
  AddRate(one, 2e-6, &profile);
  AddCachedRate(one, 0, &profile);
  EXPECT_EQ(profile.kernels(1).cached_flops_per_second(), 0);
}

TEST(KernelRunnerTest, AWindowIsWholeSetsWithinHalfOfTheCache) {
  auto runner = KernelRunner::Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const ProbeCase small = StreamCase(1 << 10), large = StreamCase(1 << 20);
  constexpr int64_t kCache = 32 << 20;
  const int64_t of_small = runner->WindowInCache(small, kCache);
  EXPECT_GE(of_small, 4 << 20);
  EXPECT_LE(of_small, kCache / 2);
  EXPECT_EQ(runner->RoundOf(small, of_small) * 2 * 4 * (1 << 10), of_small);
  EXPECT_EQ(runner->WindowInCache(large, kCache), kCache / 2) << "two sets of 8 MiB";
  EXPECT_EQ(runner->WindowInCache(large, 8 << 20), 0) << "half of it has no room for one set";
  EXPECT_EQ(runner->WindowInCache(small, 0), 0);
  runner->SetWindow(of_small);
  for (int i = 0; i < 3; ++i) EXPECT_GT(runner->Call(small), 0);
}

TEST(KernelRunnerTest, AWindowIsLargerThanTheOwnCachesOfAllCoresThatWorkOnIt) {
  const ProbeCase small = StreamCase(1 << 10);
  for (const int threads : {1, 2, 3}) {
    auto runner = KernelRunner::Create(threads);
    ASSERT_TRUE(runner.ok()) << runner.status();
    EXPECT_EQ(runner->WindowInCache(small, 32 << 20), threads * (4 << 20));
  }
  auto runner = KernelRunner::Create(8);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ(runner->WindowInCache(small, 32 << 20), 16 << 20) << "half of the cache at the most";
}

// What a window leaves in the cache is not what operands in memory are timed with.
TEST(KernelRunnerTest, CallsRoundAllOfTheMemoryGoOnBehindAWindow) {
  auto runner = KernelRunner::Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const ProbeCase one = StreamCase(1 << 20);
  constexpr int64_t kSet = 2 * 4 << 20;
  for (int i = 0; i < 3; ++i) EXPECT_GT(runner->Call(one), 0);
  EXPECT_EQ(runner->position(), 3 * kSet);
  runner->SetWindow(2 * kSet);
  for (int i = 0; i < 3; ++i) EXPECT_GT(runner->Call(one), 0);
  EXPECT_EQ(runner->position(), kSet) << "round the window";
  runner->SetWindow(0);
  EXPECT_EQ(runner->position(), 3 * kSet);
  runner->SetWindow(2 * kSet);
  EXPECT_EQ(runner->position(), 0);
}

std::set<std::string> KernelsOf(ProbeDepth depth, ProbeTarget target,
                                const std::string& precision) {
  std::set<std::string> kernels;
  for (const ProbeCase& one : ProbeCases(depth, target)) {
    const auto of = kernels::RateClassOf(one.op, one.attrs, one.operands);
    if (of.precision == precision) kernels.insert(of.kernel);
  }
  return kernels;
}

// On the CPU each of them is computed as another that is measured.
TEST(ProbeCasesTest, OtherPrecisionsOfProductsAreMeasuredOnGpus) {
  const std::set<std::string> products = {"matmul", "matmul_nt", "matmul_tn"};
  std::set<std::string> with_head = products;
  with_head.insert({"lm_head_loss", "lm_head_loss_grad"});
  for (const ProbeDepth depth : {ProbeDepth::kBrief, ProbeDepth::kThorough}) {
    EXPECT_EQ(KernelsOf(depth, ProbeTarget::kGpu, "tf32"), with_head);
    EXPECT_EQ(KernelsOf(depth, ProbeTarget::kGpu, "fp16"), with_head);
    EXPECT_EQ(KernelsOf(depth, ProbeTarget::kGpu, "fp8"), products) << "the head is not fp8";
    for (const char* precision : {"tf32", "fp16", "fp8"})
      EXPECT_THAT(KernelsOf(depth, ProbeTarget::kCpu, precision), IsEmpty());
  }
}

TEST(ProbeCasesTest, FewShapesAreOfAllKernels) {
  for (const ProbeTarget target : {ProbeTarget::kCpu, ProbeTarget::kGpu}) {
    for (const char* precision : {"fp32", "bf16"}) {
      EXPECT_EQ(KernelsOf(ProbeDepth::kBrief, target, precision),
                KernelsOf(ProbeDepth::kThorough, target, precision));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ProbeCasesTest,
                         testing::Combine(testing::Values(ProbeDepth::kBrief,
                                                          ProbeDepth::kThorough),
                                          testing::Values(ProbeTarget::kCpu, ProbeTarget::kGpu)));

TEST(KernelProbeTest, ALargerProductTakesLonger) {
  auto probe = KernelProbe::Create(1, 1);
  ASSERT_TRUE(probe.ok()) << probe.status();
  const ProbeCase* small = nullptr;
  const ProbeCase* large = nullptr;
  const std::vector<ProbeCase> cases = ProbeCases(ProbeDepth::kBrief);
  for (const ProbeCase& one : cases) {
    if (one.op != kernels::Op::kMatmul) continue;
    const auto flops = [](const ProbeCase& of) {
      return kernels::Flops(of.op, of.attrs, of.operands);
    };
    if (small == nullptr || flops(one) < flops(*small)) small = &one;
    if (large == nullptr || flops(one) > flops(*large)) large = &one;
  }
  ASSERT_NE(small, nullptr);
  EXPECT_GT(probe->SteadySeconds(*large), 10 * probe->SteadySeconds(*small));
}

// Of all threads of this process.
double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(CoRunningRanksTest, TheyWorkUntilTheyAreToldToRest) {
  constexpr double kWorked = 20e-3;
  auto co_running = CoRunningRanks::Create(2, 1);
  ASSERT_TRUE(co_running.ok()) << co_running.status();
  const std::vector<ProbeCase> cases = ProbeCases(ProbeDepth::kBrief);
  const double before = ProcessorSeconds();
  (*co_running)->Do(&cases.front());
  while (ProcessorSeconds() - before < kWorked) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  (*co_running)->Do(nullptr);
  const double resting = ProcessorSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(ProcessorSeconds() - resting, kWorked / 4);
}

TEST(CoRunningRanksTest, ACaseIsTimedAmongThem) {
  auto probe = KernelProbe::Create(/*threads=*/1, /*ranks=*/2);
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_GT(probe->SteadySeconds(ProbeCases(ProbeDepth::kBrief).front()), 0);
}

TEST(StreamProbeTest, WakingAnotherStreamIsMeasured) {
  v1::HardwareProfile profile;
  ASSERT_TRUE(MeasureStreams(1, &profile).ok());
  EXPECT_GT(profile.instruction_overhead_seconds(), 0);
  EXPECT_GT(profile.wake_seconds(), 0);
  EXPECT_EQ(profile.team_wake_seconds(), 0) << "there is no team";
}

class ProbeCacheTest : public testing::Test {
 protected:
  ProbeCacheTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-profile-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    profile_.set_name("one machine");
    profile_.set_hardware("0001");
    profile_.set_measured(true);
    profile_.set_memory_bytes_per_second(12e9);
  }
  ~ProbeCacheTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  v1::HardwareProfile profile_;
};

TEST_F(ProbeCacheTest, AProfileOfThisMachineIsFoundAgain) {
  ASSERT_TRUE(ProbeCache::Open(folder_, "2", "0001").Write(profile_).ok());
  std::string why_not;
  const auto kept = ProbeCache::Open(folder_, "2", "0001").Read(&why_not);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->memory_bytes_per_second(), 12e9);
  EXPECT_THAT(why_not, IsEmpty());
  EXPECT_FALSE(ProbeCache::Open(folder_, "1", "0001").Read(&why_not).has_value());
}

TEST_F(ProbeCacheTest, AProfileOfOtherHardwareIsRefusedWithTheReason) {
  ASSERT_TRUE(ProbeCache::Open(folder_, "2", "0001").Write(profile_).ok());
  std::string why_not;
  EXPECT_FALSE(ProbeCache::Open(folder_, "2", "0002").Read(&why_not).has_value());
  EXPECT_THAT(why_not, HasSubstr("other hardware"));
  EXPECT_THAT(why_not, HasSubstr("one machine"));
}

TEST_F(ProbeCacheTest, WhatIsNoProfileIsSaidToBeNone) {
  ASSERT_TRUE(ProbeCache::Open(folder_, "2", "0001").Write(v1::HardwareProfile()).ok());
  std::string why_not;
  EXPECT_FALSE(ProbeCache::Open(folder_, "2", "0001").Read(&why_not).has_value());
  EXPECT_THAT(why_not, HasSubstr("no measured profile"));
  EXPECT_FALSE(ProbeCache::Open("", "2", "0001").Read(&why_not).has_value());
}

TEST(ProbeTextTest, EachKernelShowsItsSlowestAndFastestShape) {
  v1::HardwareProfile profile;
  profile.set_name("one machine");
  profile.set_threads(2);
  for (const int64_t rows : {64, 512}) {
    v1::KernelRate* rate = profile.add_kernels();
    rate->set_kernel("matmul");
    rate->set_precision("fp32");
    rate->set_rows(rows);
    rate->set_flops_per_second(1e9 * static_cast<double>(rows));
  }
  const std::string text = ProfileText(profile);
  EXPECT_THAT(text, HasSubstr("matmul fp32"));
  EXPECT_THAT(text, HasSubstr("64.0 to  512.0 GFLOP/s"));
}

}  // namespace
}  // namespace terrace
