// Plan and driver compared, and what is told of it.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/device/driver_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "absl/time/clock.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr PlannedUse kPlanned = {.arena_bytes = 900'000, .outside_bytes = 100'000};

TEST(DriverDisagreementTest, HalfAPercentBelowThePlanIsAgreementAndNothingIsAboveIt) {
  EXPECT_EQ(DriverDisagreement(kPlanned, {1'000'000, "NVML"}), "");
  EXPECT_EQ(DriverDisagreement(kPlanned, {995'000, "NVML"}), "");
  EXPECT_THAT(DriverDisagreement(kPlanned, {994'999, "NVML"}), HasSubstr("0.5 % less than"));
  EXPECT_THAT(DriverDisagreement(kPlanned, {1'000'001, "NVML"}), HasSubstr("0.0 % more than"));
}

TEST(DriverDisagreementTest, NamesBothNumbersAndWhoCounts) {
  EXPECT_EQ(
      DriverDisagreement({.arena_bytes = 3 << 20, .outside_bytes = 1 << 20}, {5 << 20, "NVML"}),
      "the driver counts 5.0 MiB of the device, 25.0 % more than the plan's 4.0 MiB (arena "
      "3.0 MiB, outside of it 1.0 MiB), by NVML; what is planned beside this job may not "
      "fit");
}

TEST(DriverDisagreementTest, WhereNobodyCountsNothingDisagrees) {
  EXPECT_EQ(DriverDisagreement(kPlanned, {}), "");
}

// A device whose driver says what a test wants.
class Counted final : public Backend {
 public:
  std::string description() const override { return "counted"; }
  bool device_is_host() const override { return false; }
  absl::StatusOr<std::unique_ptr<Region>> ReserveDevice(const std::string&, const ArenaExtent&,
                                                        int) override {
    return absl::UnimplementedError("");
  }
  std::unique_ptr<SegmentSource> NewSegments(int) override { return nullptr; }
  absl::StatusOr<std::unique_ptr<Pin>> PinHost(std::span<std::byte>) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::span<std::byte>> Staging(int64_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(v1::StreamKind) override {
    return absl::UnimplementedError("");
  }
  absl::Status MeetRanks(uint32_t, uint32_t, RendezvousStore*, int64_t) override {
    return absl::OkStatus();
  }
  bool one_collective_at_a_time() const override { return true; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupOptions&,
                                                        RendezvousStore*) override {
    return absl::UnimplementedError("");
  }
  absl::Status EnterThread() override { return absl::OkStatus(); }
  absl::Status CheckRun() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> ExternalBytes(int64_t, RendezvousStore*) override { return 0; }
  DriverUse AskDriver() override {
    ++asked;
    return {bytes.load(), "NVML", joules.load()};
  }

  std::atomic<int64_t> bytes{0};
  std::atomic<double> joules{0};
  std::atomic<int> asked{0};
};

void WaitForQuestions(const Counted& device, int more) {
  const int until = device.asked + more;
  for (int i = 0; i < 10'000 && device.asked < until; ++i) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_GE(device.asked, until);
}

TEST(DriverWatchTest, TellsADisagreementWhenItBeginsAndNotAgain) {
  Counted device;
  device.bytes = 1'000'000;
  absl::Mutex mutex;
  std::vector<std::string> told;
  {
    DriverWatch watch(
        &device, kPlanned,
        [&](const std::string& text) {
          absl::MutexLock lock(&mutex);
          told.push_back(text);
        },
        absl::Milliseconds(1));
    EXPECT_EQ(watch.latest().bytes, 1'000'000);
    WaitForQuestions(device, 3);
    device.bytes = 1'200'000;
    WaitForQuestions(device, 3);
    EXPECT_EQ(watch.latest().bytes, 1'200'000);
    device.bytes = 1'000'000;
    WaitForQuestions(device, 3);
    device.bytes = 500'000;
    WaitForQuestions(device, 3);
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[0], HasSubstr("20.0 % more"));
  EXPECT_THAT(told[1], HasSubstr("50.0 % less"));
}

TEST(DriverWatchTest, AFigureThatSwingsIsToldOnlySoOften) {
  Counted device;
  device.bytes = 1'000'000;
  std::atomic<int> told{0};
  DriverWatch watch(
      &device, kPlanned, [&](const std::string&) { ++told; }, absl::Milliseconds(1));
  for (int i = 0; i < 2 * kDriverWarningsMax; ++i) {
    device.bytes = i % 2 == 0 ? 1'200'000 : 1'000'000;
    WaitForQuestions(device, 2);
  }
  device.bytes = 1'200'000;
  WaitForQuestions(device, 2);
  EXPECT_EQ(told, kDriverWarningsMax);
}

TEST(DriverWatchTest, EnergyIsCountedFromTheFirstAnswerOn) {
  Counted device;
  device.bytes = 1'000'000;
  device.joules = 5000;
  DriverWatch watch(
      &device, kPlanned, [](const std::string&) {}, absl::Milliseconds(1));
  EXPECT_EQ(watch.EnergyJoules(), 0);
  device.joules = 5012;
  WaitForQuestions(device, 3);
  EXPECT_DOUBLE_EQ(watch.EnergyJoules(), 12);
}

TEST(DriverWatchTest, ADeviceThatNobodyCountsIsAskedOnce) {
  Counted device;
  DriverWatch watch(
      &device, kPlanned, [](const std::string&) { FAIL(); }, absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(device.asked, 1);
}

}  // namespace
}  // namespace terrace
