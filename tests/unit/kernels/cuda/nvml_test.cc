// What a process holds of a GPU by NVML, and when its answer does not count.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_nvml.h"

namespace terrace::kernels::cuda {
namespace {

using testing::HasSubstr;

constexpr char kDigits[] = "0102030405060708090a0b0c0d0e0f10";
constexpr char kGpu[] = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10";
constexpr char kMig[] = "MIG-01020304-0506-0708-090a-0b0c0d0e0f10";
constexpr int64_t kArena = 1000, kAll = 8000;

// Bytes of process 42, or minus one and what stands against it.
int64_t UsedBy(KnownProcess known, std::vector<fake_nvml::Process> processes, std::string* why_not,
               const char* device) {
  fake_nvml::Set({.devices = {device}, .processes = std::move(processes)});
  std::unique_ptr<NvmlDevice> nvml;
  Status status = NvmlDevice::Open(kDigits, &nvml);
  int64_t bytes = -1;
  if (status.ok()) status = nvml->UsedBy(known, &bytes);
  if (why_not != nullptr) *why_not = status.message;
  return status.ok() ? bytes : -1;
}

int64_t Used(std::vector<fake_nvml::Process> processes, std::string* why_not = nullptr,
             const char* device = kGpu) {
  return UsedBy({42, true, kArena, [] { return kAll; }}, std::move(processes), why_not, device);
}

// In a container, where the driver's numbers are others; all processes together hold `all`.
int64_t UsedInContainer(std::vector<fake_nvml::Process> processes, int64_t all,
                        std::string* why_not = nullptr) {
  return UsedBy({42, false, kArena, [all] { return all; }}, std::move(processes), why_not, kGpu);
}

TEST(NvmlTest, AProcessIsFoundAmongOthers) {
  EXPECT_EQ(Used({{7, 5000}, {42, 1600}, {43, 1}}), 1600);
  EXPECT_EQ(fake_nvml::Open(), 0) << "closed again";
}

TEST(NvmlTest, EveryInstanceOfAPartedDeviceCounts) {
  EXPECT_EQ(Used({{42, 1600}, {42, 400}}, nullptr, kMig), 2000);
}

TEST(NvmlTest, MoreProcessesThanWereExpectedAreRead) {
  std::vector<fake_nvml::Process> many(100, {7, 1});
  many.push_back({42, 1600});
  EXPECT_EQ(Used(std::move(many)), 1600);
}

TEST(NvmlTest, OfNumbersThatAreSharedNoOtherCounts) {
  std::string why_not;
  EXPECT_EQ(Used({{7, kAll}}, &why_not), -1);
  EXPECT_THAT(why_not, HasSubstr("lists 1 processes on the device, none of which is this one"));
}

TEST(NvmlTest, AProcessHoldsNoMoreThanAllTogether) {
  std::string why_not;
  EXPECT_EQ(Used({{42, kAll}}), kAll);
  EXPECT_EQ(Used({{42, kAll + 1}}, &why_not), -1);
  EXPECT_THAT(why_not, HasSubstr("with 8001 bytes, but it holds at least 1000 and all together at "
                                 "most 8000"));
}

// What the process gives back while it asks is in the answer or not.
TEST(NvmlTest, MemoryMayComeAndGoWhileTheDriverIsAsked) {
  const auto between = [](int64_t before, int64_t after) {
    int calls = 0;
    return UsedBy({42, true, kArena, [=]() mutable { return calls++ == 0 ? before : after; }},
                  {{42, 1600}}, nullptr, kGpu);
  };
  EXPECT_EQ(between(1600, 1500), 1600);
  EXPECT_EQ(between(1500, 1600), 1600);
  EXPECT_EQ(between(1500, 1500), -1);
}

TEST(NvmlTest, InAContainerTheOneBesideWhichThisOneWouldNotFitIsThisOne) {
  EXPECT_EQ(UsedInContainer({{7, 1600}}, 2500), 1600);
  EXPECT_EQ(UsedInContainer({{7, 1600}, {8, 400}}, 2500), 1600);
}

TEST(NvmlTest, InAContainerAnotherProcessIsNotTakenForThisOne) {
  std::string why_not;
  EXPECT_EQ(UsedInContainer({{7, 1600}}, 2600, &why_not), -1) << "this one holds the other 1000";
  EXPECT_THAT(why_not, HasSubstr("lists 1 processes on the device, none of which is this one"));
  EXPECT_THAT(why_not, HasSubstr("--pid=host"));
  EXPECT_EQ(UsedInContainer({{42, 1600}}, 2600), -1) << "a number of the host that is the same";
  EXPECT_EQ(UsedInContainer({{7, 1600}, {8, 1600}}, 3300), -1) << "it may be either";
  EXPECT_EQ(UsedInContainer({{7, kArena - 1}}, 1700), -1);
  EXPECT_EQ(UsedInContainer({}, 2600), -1);
}

TEST(NvmlTest, AProcessThatIsListedWithoutItsBytesDoesNotCount) {
  std::string why_not;
  EXPECT_EQ(Used({{42, 0}}, &why_not), -1);
  EXPECT_THAT(why_not, HasSubstr("lists this process with 0 bytes, but it holds at least 1000"));
  EXPECT_EQ(Used({{42, ~0ull}}, &why_not), -1);
  EXPECT_THAT(why_not, HasSubstr("with 0 bytes"));
}

TEST(NvmlTest, ProcessesOfADeviceAreCountedWhateverTheirNumbers) {
  fake_nvml::Set({.devices = {kGpu}, .processes = {{7, 1}, {8, 2}, {42, 3}}});
  std::unique_ptr<NvmlDevice> nvml;
  ASSERT_TRUE(NvmlDevice::Open(kDigits, &nvml).ok());
  int count = 0;
  ASSERT_TRUE(nvml->CountProcesses(&count).ok());
  EXPECT_EQ(count, 3);
}

TEST(NvmlTest, HowBusyADeviceIsIsToldUnlessItIsAPart) {
  std::unique_ptr<NvmlDevice> nvml;
  fake_nvml::Set({.devices = {kGpu}, .busy_percent = 97});
  ASSERT_TRUE(NvmlDevice::Open(kDigits, &nvml).ok());
  int percent = 0;
  ASSERT_TRUE(nvml->BusyPercent(&percent).ok());
  EXPECT_EQ(percent, 97);
  fake_nvml::Set({.devices = {kMig}, .busy_percent = -1});
  EXPECT_FALSE(nvml->BusyPercent(&percent).ok());
}

TEST(NvmlTest, EnergyIsToldInJoulesAndZeroWhereTheDriverDoesNotCount) {
  std::unique_ptr<NvmlDevice> nvml;
  fake_nvml::Set({.devices = {kGpu}, .millijoules = 2'500});
  ASSERT_TRUE(NvmlDevice::Open(kDigits, &nvml).ok());
  EXPECT_DOUBLE_EQ(nvml->EnergyJoules(), 2.5);
  fake_nvml::Set({.devices = {kMig}, .millijoules = -1});
  EXPECT_EQ(nvml->EnergyJoules(), 0);
}

TEST(NvmlTest, ADeviceThatNvmlDoesNotKnowIsNamed) {
  std::string why_not;
  EXPECT_EQ(Used({{42, 1600}}, &why_not, "GPU-another"), -1);
  EXPECT_EQ(why_not, "NVML: the device: Not Found");
  EXPECT_EQ(fake_nvml::Open(), 0);
}

}  // namespace
}  // namespace terrace::kernels::cuda
