// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/gpu_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "coordinator/hardware/catalogue.h"

namespace terrace {
namespace {

using testing::HasSubstr;

const GpuKind kH100 = {
    .name = "NVIDIA H100 80GB HBM3", .memory_bytes = int64_t{85'000'000'000}, .per_node = 4};

v1::HardwareProfile Measured(const GpuKind& gpu) {
  v1::HardwareProfile profile;
  profile.set_measured(true);
  profile.set_device("cuda");
  profile.set_name(gpu.name);
  profile.set_device_memory_bytes(gpu.memory_bytes);
  profile.set_f32_flops_per_second(4e13);
  profile.set_bf16_flops_per_second(7e14);
  profile.set_memory_bytes_per_second(2.5e12);
  profile.set_to_device_bytes_per_second(5e10);
  profile.set_to_host_bytes_per_second(4e10);
  v1::KernelRate* rate = profile.add_kernels();
  rate->set_kernel("matmul");
  rate->set_precision("bf16");
  rate->set_flops_per_second(7e14);
  return profile;
}

TEST(GpuProfileTest, WhatWasMeasuredReplacesWhatIsReachedOnPaper) {
  v1::HardwareProfile measured = Measured(kH100);
  v1::LinkRate* link = measured.add_links();
  link->set_scope("node");
  link->set_ranks(2);
  link->set_bytes_per_second(3e11);
  const v1::HardwareProfile rates = RatesOf(kH100, measured), paper = WhatIfProfile(kH100);
  EXPECT_TRUE(rates.measured());
  EXPECT_EQ(rates.memory_bytes_per_second(), 2.5e12);
  EXPECT_EQ(rates.kernels_size(), 1);
  EXPECT_EQ(rates.bf16_flops_per_second(), paper.bf16_flops_per_second())
      << "the peak, by which MFU is counted";
  EXPECT_EQ(rates.ranks_per_node(), 4u);
  ASSERT_EQ(rates.links_size(), 2) << "links between nodes are those on paper";
  EXPECT_EQ(rates.links(0).bytes_per_second(), 3e11);
  EXPECT_EQ(rates.links(1).scope(), "network");
  EXPECT_EQ(rates.communication_slowdown(), paper.communication_slowdown());
  EXPECT_EQ(WarningOf(kH100, measured), "");
}

TEST(GpuProfileTest, WithoutLinksThoseOnPaperCount) {
  const v1::HardwareProfile rates = RatesOf(kH100, Measured(kH100)), paper = WhatIfProfile(kH100);
  EXPECT_EQ(rates.links_size(), 2);
  EXPECT_EQ(rates.link_bytes_per_second(), paper.link_bytes_per_second());
}

TEST(GpuProfileTest, ADeviceThatTheCatalogueLacksHasItsOwnPeaksOnceItIsMeasured) {
  const GpuKind gpu = {.name = "NVIDIA A10", .memory_bytes = int64_t{24} << 30, .per_node = 1};
  EXPECT_EQ(RatesOf(gpu, Measured(gpu)).bf16_flops_per_second(), 7e14);
  EXPECT_THAT(WarningOf(gpu, Measured(gpu)), HasSubstr("layouts are chosen by the rates of H100"));
  EXPECT_THAT(WarningOf(gpu, {}), HasSubstr("plans count the rates of H100"));
}

TEST(GpuProfileTest, AProfileOfOtherHardwareIsNotUsedAndTheSentenceSaysWhy) {
  const auto refused = [](auto change) {
    v1::HardwareProfile profile = Measured(kH100);
    change(profile);
    EXPECT_FALSE(RatesOf(kH100, profile).measured());
    EXPECT_THAT(WarningOf(kH100, profile), HasSubstr("is not used, as "));
    return WhyNotOf(kH100, profile);
  };
  EXPECT_EQ(refused([](v1::HardwareProfile& p) { p.set_device(""); }), "it is of no GPU");
  EXPECT_EQ(refused([](v1::HardwareProfile& p) { p.set_name("NVIDIA L4"); }), "it is of NVIDIA L4");
  EXPECT_EQ(refused([](v1::HardwareProfile& p) { p.set_device_memory_bytes(42'000'000'000); }),
            "it is of one with 42000000000 bytes of memory, not 85000000000");
  EXPECT_EQ(refused([](v1::HardwareProfile& p) { p.set_memory_bytes_per_second(0); }),
            "its memory_bytes_per_second is no rate");
  EXPECT_EQ(refused([](v1::HardwareProfile& p) {
              p.mutable_kernels(0)->set_flops_per_second(std::numeric_limits<double>::infinity());
            }),
            "its kernels[].flops_per_second is no rate");
  EXPECT_EQ(refused([](v1::HardwareProfile& p) { p.add_links()->set_bytes_per_second(-1); }),
            "its links[].bytes_per_second is no rate");
}

TEST(GpuProfileTest, WhereThereIsNoGpuTheNameSaysWhoseRatesCount) {
  EXPECT_EQ(WhatIfProfile({}).name(), "H100-80GB, as no GPU was measured here");
  EXPECT_EQ(WhatIfOverheadBytes(kH100), OverheadOf(Generation::kHopper).total());
}

}  // namespace
}  // namespace terrace
