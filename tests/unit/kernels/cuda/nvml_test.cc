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
constexpr int64_t kArena = 1000;

// Bytes of process 42, or minus one and what stands against it.
int64_t Used(std::vector<fake_nvml::Process> processes, std::string* why_not = nullptr,
             const char* device = kGpu) {
  fake_nvml::Set({.devices = {device}, .processes = std::move(processes)});
  std::unique_ptr<NvmlDevice> nvml;
  Status status = NvmlDevice::Open(kDigits, &nvml);
  int64_t bytes = -1;
  if (status.ok()) status = nvml->UsedBy(42, kArena, &bytes);
  if (why_not != nullptr) *why_not = status.message;
  return status.ok() ? bytes : -1;
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

TEST(NvmlTest, TheOnlyProcessIsThisOneWhateverItsNumber) { EXPECT_EQ(Used({{7, 1600}}), 1600); }

TEST(NvmlTest, TheOnlyProcessIsAnotherWhereItHoldsLessThanThisOne) {
  std::string why_not;
  EXPECT_EQ(Used({{7, kArena - 1}}, &why_not), -1);
  EXPECT_THAT(why_not, HasSubstr("1 processes on the device by other numbers"));
}

TEST(NvmlTest, NumbersOfAnotherNamespaceDoNotCount) {
  std::string why_not;
  EXPECT_EQ(Used({{7, 1600}, {8, 1600}}, &why_not), -1);
  EXPECT_THAT(why_not, HasSubstr("lists 2 processes on the device by other numbers"));
  EXPECT_THAT(why_not, HasSubstr("--pid=host"));
  EXPECT_EQ(Used({}, &why_not), -1);
}

TEST(NvmlTest, AProcessThatIsListedWithoutItsBytesDoesNotCount) {
  std::string why_not;
  EXPECT_EQ(Used({{42, 0}}, &why_not), -1);
  EXPECT_THAT(why_not, HasSubstr("lists this process with 0 bytes and it holds at least 1000"));
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

TEST(NvmlTest, ADeviceThatNvmlDoesNotKnowIsNamed) {
  std::string why_not;
  EXPECT_EQ(Used({{42, 1600}}, &why_not, "GPU-another"), -1);
  EXPECT_EQ(why_not, "NVML: the device: Not Found");
  EXPECT_EQ(fake_nvml::Open(), 0);
}

}  // namespace
}  // namespace terrace::kernels::cuda
