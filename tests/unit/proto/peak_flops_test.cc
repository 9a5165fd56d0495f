// SPDX-License-Identifier: Apache-2.0
#include "proto/peak_flops.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace terrace {
namespace {

v1::HardwareProfile Cpu() {
  v1::HardwareProfile profile;
  profile.set_shared_cores(true);
  profile.set_f32_flops_per_second(147e9);
  profile.set_bf16_flops_per_second(489e9);
  return profile;
}

void AddKernel(std::string_view kernel, std::string_view precision, double rate, double cached,
               v1::HardwareProfile* profile) {
  v1::KernelRate* added = profile->add_kernels();
  added->set_kernel(std::string(kernel));
  added->set_precision(std::string(precision));
  added->set_flops_per_second(rate);
  added->set_cached_flops_per_second(cached);
}

TEST(PeakFlopsTest, NoProductThatWasMeasuredIsFasterThanThePeak) {
  v1::HardwareProfile profile = Cpu();
  AddKernel("matmul_nt", "bf16", 489e9, 829e9, &profile);
  AddKernel("matmul", "bf16", 400e9, 500e9, &profile);
  AddKernel("matmul_nt", "fp32", 147e9, 178e9, &profile);
  EXPECT_EQ(PeakFlops(profile, "bf16"), 829e9);
  EXPECT_EQ(PeakFlops(profile, "fp32"), 178e9);
}

TEST(PeakFlopsTest, APrecisionThatTheDeviceLacksHasThePeakOfTheOneItComputesIn) {
  v1::HardwareProfile profile = Cpu();
  AddKernel("matmul_tn", "fp32", 147e9, 178e9, &profile);
  AddKernel("matmul_tn", "bf16", 489e9, 829e9, &profile);
  EXPECT_EQ(PeakFlops(profile, "fp16"), 178e9);
  EXPECT_EQ(PeakFlops(profile, "tf32"), 178e9);
  EXPECT_EQ(PeakFlops(profile, "fp8"), 829e9);
}

TEST(PeakFlopsTest, WithoutRatesInTheCacheThePeakIsThatOfOperandsInMemory) {
  v1::HardwareProfile profile = Cpu();
  AddKernel("matmul_nt", "bf16", 400e9, 0, &profile);
  EXPECT_EQ(PeakFlops(profile, "bf16"), 489e9);
  EXPECT_EQ(PeakFlops(profile, "fp16"), 147e9);
}

TEST(PeakFlopsTest, KernelsThatAreNoProductsAreNoPeak) {
  v1::HardwareProfile profile = Cpu();
  AddKernel("update", "fp32", 1e9, 900e9, &profile);
  EXPECT_EQ(PeakFlops(profile, "fp32"), 147e9);
}

}  // namespace
}  // namespace terrace
