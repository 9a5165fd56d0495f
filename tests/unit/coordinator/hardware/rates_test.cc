// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/rates.h"

#include <gtest/gtest.h>

#include <set>

#include "coordinator/hardware/catalogue.h"
#include "coordinator/simulator/compute_time.h"
#include "proto/peak_flops.h"

namespace terrace {
namespace {

double MatmulRate(const v1::HardwareProfile& profile, const char* precision) {
  return ComputeTime(profile).Rate(
      {.kernel = "matmul", .precision = precision, .rows = 4096, .columns = 4096, .inner = 4096});
}

TEST(RatesTest, EachChangesItsOwnAlone) {
  const v1::HardwareProfile profile = ProfileOf(*FindDevice("h100"));
  std::set<std::string> changed, names;
  for (const Rate rate : kRates) {
    EXPECT_EQ(WithRate(profile, rate, 1.0 / 3).SerializeAsString() == profile.SerializeAsString(),
              false)
        << RateName(rate, "bf16");
    changed.insert(WithRate(profile, rate, 1.0 / 3).SerializeAsString());
    names.insert(RateName(rate, "bf16"));
  }
  EXPECT_EQ(changed.size(), kRates.size());
  EXPECT_EQ(names.size(), kRates.size());
  EXPECT_DOUBLE_EQ(MatmulRate(WithRate(profile, Rate::kAttention, 0.5), "bf16"),
                   MatmulRate(profile, "bf16"));
}

TEST(RatesTest, ProductsOfOnePrecisionAlone) {
  const v1::HardwareProfile profile = ProfileOf(*FindDevice("h100"));
  const v1::HardwareProfile slower = WithRate(profile, Rate::kMatmul, 0.5, "fp8");
  EXPECT_NEAR(MatmulRate(slower, "fp8") / MatmulRate(profile, "fp8"), 0.5, 1e-9);
  EXPECT_DOUBLE_EQ(MatmulRate(slower, "bf16"), MatmulRate(profile, "bf16"));
}

TEST(RatesTest, TensorCoresOfVoltaCountInFp16Alone) {
  const v1::HardwareProfile profile = ProfileOf(*FindDevice("v100"));
  EXPECT_DOUBLE_EQ(PeakFlops(profile, "fp16"), 125e12);
  EXPECT_DOUBLE_EQ(PeakFlops(profile, "bf16"), 15.7e12);
  EXPECT_GT(MatmulRate(profile, "fp16"), 75e12);
  EXPECT_LT(MatmulRate(profile, "bf16"), 15.7e12);
  EXPECT_DOUBLE_EQ(PeakFlops(ProfileOf(*FindDevice("a100")), "fp16"), 312e12);
}

TEST(RatesTest, DevicesThatNoBackendRunsSaySo) {
  for (const CatalogueDevice& device : Catalogue()) {
    const bool runs =
        device.generation != Generation::kVolta && device.generation != Generation::kCdna3;
    EXPECT_EQ(WhyNotRunnable(device).empty(), runs) << device.name;
  }
}

}  // namespace
}  // namespace terrace
