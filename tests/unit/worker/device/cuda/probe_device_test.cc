// What is measured of GPUs, on a device whose clock the test plays.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "worker/probe/device.h"

namespace terrace {
namespace {

using kernels::DType;
using testing::HasSubstr;
using Order = simt::DeviceOptions::Order;

constexpr int64_t kSide = 48;
constexpr double kWorkMs = 2;  // that each piece of work takes

kernels::TensorShape Matrix(DType dtype) {
  kernels::TensorShape shape = {.dtype = dtype, .dims = 2};
  shape.size[0] = shape.size[1] = kSide;
  shape.row_stride = kSide;
  return shape;
}

ProbeCase Product(DType dtype, kernels::MatmulPrecision precision) {
  const kernels::TensorShape x = Matrix(dtype), none;
  return {kernels::Op::kMatmul,
          kernels::MatmulAttrs{.precision = precision},
          {x, x, x, none, none, none}};
}

DeviceProbe SmallProbe() {
  return {.cases = {Product(DType::kF32, kernels::MatmulPrecision::kF32),
                    Product(DType::kBF16, kernels::MatmulPrecision::kBF16)},
          .turns = 2,
          .arena_bytes = 112 << 20,
          .stream_elements = 3000,
          .copy_bytes = 1 << 20,
          .link_elements = 3000,
          .link_calls = 5,
          .ranks = 1};
}

void Reset(Order order, int devices = 1, double ms_per_work = kWorkMs) {
  simt::ResetDevice({.order = order, .seed = 3, .devices = devices, .ms_per_work = ms_per_work});
}

void Ignore(std::string_view, double) {}

class ProbeDeviceTest : public testing::Test {
 protected:
  std::unique_ptr<Backend> Open() {
    auto backend = OpenBackend("cuda", 0);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? *std::move(backend) : nullptr;
  }
  v1::HardwareProfile profile_;
};

// However late the device works, and whatever else it does before.
TEST_F(ProbeDeviceTest, KernelsAndMemoryAreTimedByTheDevicesClock) {
  for (const Order order : {Order::kLazy, Order::kRandom, Order::kEager}) {
    Reset(order);
    profile_.Clear();
    const auto backend = Open();
    const absl::Status status =
        MeasureDeviceKernels(backend.get(), SmallProbe(), Ignore, &profile_);
    ASSERT_TRUE(status.ok()) << status;
    const double flops = 2.0 * kSide * kSide * kSide / (kWorkMs * 1e-3);
    ASSERT_EQ(profile_.kernels_size(), 2);
    for (const v1::KernelRate& rate : profile_.kernels()) {
      EXPECT_EQ(rate.kernel(), "matmul");
      EXPECT_EQ(rate.rows(), kSide);
      EXPECT_NEAR(rate.flops_per_second() / flops, 1, 1e-3) << rate.precision();
    }
    EXPECT_NEAR(profile_.f32_flops_per_second() / flops, 1, 1e-3);
    EXPECT_NEAR(profile_.bf16_flops_per_second() / flops, 1, 1e-3);
    const double bytes = 3.0 * 4 * 3000;  // one vector is read, the other is read and written
    EXPECT_NEAR(profile_.memory_bytes_per_second() / (bytes / (kWorkMs * 1e-3)), 1, 1e-3);
  }
}

// Precisions of the rates of products that a device has.
std::vector<std::string> PrecisionsOn(int capability, v1::HardwareProfile* profile) {
  simt::ResetDevice({.devices = 1, .capability = capability, .ms_per_work = kWorkMs});
  DeviceProbe probe = SmallProbe();
  for (const auto& [dtype, precision] : {std::pair(DType::kF16, kernels::MatmulPrecision::kF16),
                                         std::pair(DType::kBF16, kernels::MatmulPrecision::kFP8)}) {
    probe.cases.push_back(Product(dtype, precision));
  }
  probe.cases.push_back(Product(DType::kF32, kernels::MatmulPrecision::kTF32));
  const auto backend = *OpenBackend("cuda", 0);
  const absl::Status status = MeasureDeviceKernels(backend.get(), probe, Ignore, profile);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::string> precisions;
  for (const v1::KernelRate& rate : profile->kernels()) {
    EXPECT_GT(rate.flops_per_second(), 0);
    precisions.push_back(rate.precision());
  }
  return precisions;
}

TEST_F(ProbeDeviceTest, HalvesAndEightBitsAreMeasuredWhereTheDeviceHasThem) {
  EXPECT_THAT(PrecisionsOn(90, &profile_),
              testing::ElementsAre("fp32", "bf16", "fp16", "fp8", "tf32"));
  EXPECT_GT(profile_.fp8_flops_per_second(), 0);
  profile_.Clear();
  EXPECT_THAT(PrecisionsOn(80, &profile_), testing::ElementsAre("fp32", "bf16", "fp16", "tf32"));
  EXPECT_EQ(profile_.fp8_flops_per_second(), 0);
}

TEST_F(ProbeDeviceTest, CopiesEachWayAndBothAtOnce) {
  for (const Order order : {Order::kLazy, Order::kEager}) {
    Reset(order);
    const auto backend = Open();
    const absl::Status status = MeasureDeviceCopies(backend.get(), 1 << 20, &profile_);
    ASSERT_TRUE(status.ok()) << status;
    const double rate = (1 << 20) / (kWorkMs * 1e-3);
    EXPECT_NEAR(profile_.to_device_bytes_per_second() / rate, 1, 1e-2);
    EXPECT_NEAR(profile_.to_host_bytes_per_second() / rate, 1, 1e-2);
    // This device does one thing at a time.
    EXPECT_NEAR(profile_.copy_duplex_ratio(), 0.5, 1e-2);
  }
}

TEST_F(ProbeDeviceTest, InstructionsTakeWhatTheDeviceTakesForNothing) {
  Reset(Order::kLazy);
  const auto backend = Open();
  const absl::Status status = MeasureDeviceInstructions(backend.get(), &profile_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_NEAR(profile_.instruction_overhead_seconds() / (kWorkMs * 1e-3), 1, 1e-2);
  EXPECT_NEAR(profile_.wake_seconds(), 0, 1e-5);
}

TEST_F(ProbeDeviceTest, AProfileSaysWhatItIsOf) {
  Reset(Order::kLazy);
  DeviceProbe probe = SmallProbe();
  probe.ranks = 2;  // on one GPU: staged through the host
  std::vector<std::string> seen;
  const auto profile = MeasureDevice(probe, "1.2", [&](std::string_view what, double done) {
    EXPECT_LE(done, 1);
    if (seen.empty() || seen.back() != what) seen.emplace_back(what);
  });
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(profile->measured());
  EXPECT_EQ(profile->name(), "NVIDIA Fake 1GB");
  EXPECT_EQ(profile->device(), "cuda");
  EXPECT_THAT(profile->driver(), testing::StartsWith("CUDA 13.0"));
  EXPECT_EQ(profile->device_memory_bytes(), int64_t{1} << 30);
  EXPECT_EQ(profile->ranks_per_node(), 1u);
  EXPECT_EQ(profile->hardware(), DeviceHash(*ListCudaDevices(), "1.2"));
  EXPECT_FALSE(profile->shared_cores());
  ASSERT_EQ(profile->links_size(), 1);
  EXPECT_EQ(profile->links(0).ranks(), 2u);
  EXPECT_GT(profile->links(0).bytes_per_second(), 0);
  EXPECT_THAT(seen, testing::ElementsAre("kernels", "copies", "instructions", "links"));
  EXPECT_EQ(simt::CountsOfDevice().allocations, 0) << "all device memory is given back";
}

// Here two GPUs would need NCCL, which this test has none of.
TEST_F(ProbeDeviceTest, LinksThatCannotBeMeasuredAreLeftOut) {
  Reset(Order::kLazy, /*devices=*/2);
  DeviceProbe probe = SmallProbe();
  probe.ranks = 2;
  const auto profile = MeasureDevice(probe, "1.2", Ignore);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->links_size(), 0);
  EXPECT_EQ(profile->ranks_per_node(), 2u);
}

TEST_F(ProbeDeviceTest, ADeviceThatFailsOrIsFullOrMissingIsAnErrorThatSaysSo) {
  simt::ResetDevice({.failing_launch = 100});
  EXPECT_THAT(std::string(MeasureDevice(SmallProbe(), "1", Ignore).status().message()),
              HasSubstr("unspecified launch failure"));
  DeviceProbe large = SmallProbe();
  large.arena_bytes = int64_t{2} << 30;
  Reset(Order::kLazy);
  const absl::Status full = MeasureDevice(large, "1", Ignore).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("NVIDIA Fake 1GB"));
  simt::ResetDevice({.driver = false});
  EXPECT_EQ(MeasureDevice(SmallProbe(), "1", Ignore).status().code(),
            absl::StatusCode::kFailedPrecondition);
  simt::ResetDevice({});
}

TEST(DeviceHashTest, DependsOnAllThatRatesDependOn) {
  const DeviceSummary one = {.name = "A", .memory_bytes = int64_t{80} << 30, .driver = "CUDA 13.0"};
  const std::string hash = DeviceHash({one, one}, "1");
  EXPECT_EQ(hash, DeviceHash({one, one}, "1"));
  EXPECT_NE(hash, DeviceHash({one}, "1"));
  EXPECT_NE(hash, DeviceHash({one, one}, "2"));
  DeviceSummary driver = one, twin = one;
  driver.driver = "CUDA 13.1";
  EXPECT_EQ(DeviceKind({one}), DeviceKind({driver})) << "one file, measured again";
  EXPECT_NE(DeviceKind({one}), DeviceKind({one, twin})) << "processes that see others have another";
  for (const DeviceSummary& other : {DeviceSummary{"B", one.memory_bytes, one.driver},
                                     DeviceSummary{one.name, int64_t{40} << 30, one.driver},
                                     DeviceSummary{one.name, one.memory_bytes, "CUDA 13.1"}}) {
    EXPECT_NE(hash, DeviceHash({other, other}, "1"));
  }
}

}  // namespace
}  // namespace terrace
