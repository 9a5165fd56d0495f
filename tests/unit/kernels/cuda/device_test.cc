// What opening a GPU says where it cannot be used, and that copies are done when they return: on
// the device that the host plays (simt/fake_device.h).
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "kernels/cuda/cublas_gemm.h"
#include "kernels/cuda/memory.h"
#include "tests/unit/kernels/cuda/plain_gemms.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"

namespace terrace::kernels::cuda {

// No test here multiplies.
Status MakeCublasGemms(std::unique_ptr<GemmLibrary>* library) {
  *library = std::make_unique<PlainGemms>(/*fuses=*/true);
  return {};
}

namespace {

using testing::HasSubstr;

std::string OpeningSays(const simt::DeviceOptions& options) {
  simt::ResetDevice(options);
  std::unique_ptr<Device> device;
  const Status status = Device::Open(0, &device);
  EXPECT_EQ(status.ok(), device != nullptr);
  return status.message;
}

TEST(DeviceTest, OpensWithADriverOfTheRuntimesMajorVersionOrLater) {
  EXPECT_EQ(OpeningSays({}), "");
  EXPECT_EQ(OpeningSays({.driver_version = 13020}), "");
  EXPECT_EQ(OpeningSays({.driver_version = 14000}), "");
}

TEST(DeviceTest, AnOlderDriverIsNamedWithTheVersionThatIsNeeded) {
  EXPECT_EQ(OpeningSays({.driver_version = 12080}),
            "cuda: no NVIDIA driver that is new enough on this machine: it is for CUDA 12.8, and "
            "these programs need one for CUDA 13.0 or later (580 is the first for 13.0): update "
            "it, or install NVIDIA's cuda-compat");
}

TEST(DeviceTest, ADeviceWithoutCodeIsNamed) {
  EXPECT_THAT(OpeningSays({.has_code = false}),
              HasSubstr("loading a kernel: no kernel image is available for execution on the "
                        "device: these programs have no code for NVIDIA Fake 1GB, sm_90, 4 SMs"));
}

TEST(DeviceTest, AsManyStreamsAsThereCanBeRunBesideEachOther) {
  EXPECT_EQ(OpeningSays({}), "");
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST(DeviceTest, AttentionIsSm90asOwnWhereTheEnvironmentAsksForIt) {
  const auto wgmma = [] {
    simt::ResetDevice({});
    std::unique_ptr<Device> device;
    EXPECT_TRUE(Device::Open(0, &device).ok());
    EXPECT_TRUE(device->has_wgmma()) << "the fake device has compute capability 9.0";
    const Context context = device->MakeContext(nullptr, 0);
    EXPECT_EQ(context.multiprocessors, 4);
    return context.wgmma_attention;
  };
  EXPECT_FALSE(wgmma());
  ASSERT_EQ(::setenv("TERRACE_CUDA_ATTENTION", "wgmma", 1), 0);
  EXPECT_TRUE(wgmma());
  ASSERT_EQ(::unsetenv("TERRACE_CUDA_ATTENTION"), 0);
}

TEST(DeviceMemoryTest, WhatIsCopiedOrZeroedIsThereForQueuesThatWaitForNothing) {
  simt::ResetDevice({.order = simt::DeviceOptions::Order::kEager});
  std::unique_ptr<Device> device;
  ASSERT_TRUE(Device::Open(0, &device).ok());
  CUstream_st* const stream = device->MakeContext(nullptr, 0).stream;
  std::byte* memory = nullptr;
  bool exhausted = false;
  ASSERT_TRUE(AllocateDevice(64, &memory, &exhausted).ok());
  std::vector<std::byte> seen;
  const auto look = [&] {
    simt::Enqueue(stream, [&] { seen.assign(memory, memory + 64); });
    return seen;
  };
  const std::vector<std::byte> sevens(64, std::byte{7});
  ASSERT_TRUE(CopyNow(memory, sevens.data(), 64).ok());
  EXPECT_EQ(look(), sevens);
  ASSERT_TRUE(ZeroNow(memory, 64).ok());
  EXPECT_EQ(look(), std::vector<std::byte>(64));
  FreeDevice(memory);
}

}  // namespace
}  // namespace terrace::kernels::cuda
