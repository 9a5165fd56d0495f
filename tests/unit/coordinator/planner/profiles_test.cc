// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ProfilesTest, EveryDeviceHasRatesASizeAndASource) {
  for (const CatalogueDevice& device : Catalogue()) {
    SCOPED_TRACE(std::string(device.name));
    EXPECT_GT(device.memory_bytes, int64_t{1} << 30);
    EXPECT_GE(device.bf16_flops_per_second, device.f32_flops_per_second);
    EXPECT_GT(device.memory_bytes_per_second, device.link_bytes_per_second);
    EXPECT_FALSE(device.source.empty());
    const v1::HardwareProfile profile = ProfileOf(device);
    EXPECT_EQ(profile.name(), device.name);
    EXPECT_FALSE(profile.measured());
  }
  EXPECT_TRUE(std::is_sorted(Catalogue().begin(), Catalogue().end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
}

TEST(ProfilesTest, AnUnknownNameIsRefusedWithThoseThereAre) {
  EXPECT_TRUE(FindDevice("H100-80GB").ok());
  const auto status = FindDevice("H1000").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'H1000'"), HasSubstr("H100-80GB"), HasSubstr("A100-40GB")));
}

TEST(ProfilesTest, CoresAddUpAndMemoryStopsAtTheSocket) {
  EXPECT_DOUBLE_EQ(CpuProfile(4).f32_flops_per_second(), 2 * CpuProfile(2).f32_flops_per_second());
  EXPECT_DOUBLE_EQ(CpuProfile(64).memory_bytes_per_second(),
                   CpuProfile(128).memory_bytes_per_second());
  EXPECT_GT(CpuProfile(0).f32_flops_per_second(), 0);
  EXPECT_GT(CpuProfile(2, "avx512+amx_bf16").bf16_flops_per_second(),
            CpuProfile(2, "avx512").bf16_flops_per_second());
}

}  // namespace
}  // namespace terrace
