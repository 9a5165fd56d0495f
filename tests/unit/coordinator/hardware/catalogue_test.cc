// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "coordinator/simulator/compute_time.h"
#include "proto/peak_flops.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CatalogueTest, EveryDeviceHasRatesASizeASourceAndLinksThatExist) {
  for (const CatalogueDevice& device : Catalogue()) {
    SCOPED_TRACE(std::string(device.name));
    EXPECT_GT(device.memory_bytes, int64_t{1} << 30);
    EXPECT_GE(device.bf16_flops_per_second, device.f32_flops_per_second);
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_FALSE(device.source.empty());
    ASSERT_TRUE(FindLink(device.node_link, CatalogueLink::Kind::kNode).ok());
    ASSERT_TRUE(FindLink(device.host_link, CatalogueLink::Kind::kHost).ok());
    ASSERT_TRUE(FindLink(device.network_link, CatalogueLink::Kind::kNetwork).ok());
    const v1::HardwareProfile profile = ProfileOf(device);
    EXPECT_EQ(profile.name(), device.name);
    EXPECT_FALSE(profile.measured());
    EXPECT_GT(profile.memory_bytes_per_second(), profile.link_bytes_per_second());
    // No kernel is faster than the datasheet, but for boost clocks.
    for (const v1::KernelRate& kernel : profile.kernels()) {
      const double peak = PeakFlops(profile, kernel.precision());
      EXPECT_LE(kernel.flops_per_second(), peak) << kernel.ShortDebugString();
    }
  }
  EXPECT_TRUE(std::is_sorted(Catalogue().begin(), Catalogue().end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
}

TEST(CatalogueTest, Tf32PeaksAreThoseOfTheDatasheets) {
  const auto peak = [](const char* name) {
    return ProfileOf(*FindDevice(name)).tf32_flops_per_second() * 1e-12;
  };
  EXPECT_NEAR(peak("a100"), 156, 0.5);
  EXPECT_NEAR(peak("h100"), 494.7, 1);
  EXPECT_NEAR(peak("mi300x"), 653.7, 1);
  EXPECT_EQ(peak("v100"), FindDevice("v100")->f32_flops_per_second * 1e-12) << "it has none";
}

TEST(CatalogueTest, Fp8PeaksAreThoseOfTheDatasheets) {
  const auto peak = [](const char* name) {
    return ProfileOf(*FindDevice(name)).fp8_flops_per_second() * 1e-12;
  };
  EXPECT_NEAR(peak("h100"), 1979, 1);
  EXPECT_NEAR(peak("h200"), 1979, 1);
  EXPECT_NEAR(peak("mi300x"), 2614.9, 1);
  EXPECT_EQ(peak("a100"), 0) << "it has none";
}

TEST(CatalogueTest, NamesAndAliasesAreFoundInAnyCase) {
  for (const char* name : {"H100-80GB", "h100", "H100", "h100-sxm"}) {
    ASSERT_TRUE(FindDevice(name).ok()) << name;
    EXPECT_EQ(FindDevice(name)->name, "H100-80GB");
  }
}

TEST(CatalogueTest, AnUnknownNameIsRefusedWithTheNearest) {
  const auto device = FindDevice("H1000").status();
  EXPECT_EQ(device.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(device.message()),
              AllOf(HasSubstr("'H1000'"), HasSubstr("did you mean 'h100'"), HasSubstr("H100-80GB"),
                    HasSubstr("A100-40GB")));
  const auto link = FindLink("ib-ndr40", CatalogueLink::Kind::kNetwork).status();
  EXPECT_THAT(std::string(link.message()), HasSubstr("did you mean 'ib-ndr400'"));
}

TEST(CatalogueTest, LargerProductsAreFaster) {
  const ComputeTime time(ProfileOf(*FindDevice("h100")));
  const auto rate = [&](int64_t m, int64_t n, int64_t k) {
    return time.Rate(
        {.kernel = "matmul", .precision = "bf16", .rows = m, .columns = n, .inner = k});
  };
  EXPECT_GT(rate(8192, 8192, 8192), 2 * rate(512, 512, 512));
  EXPECT_GT(rate(8192, 8192, 8192), rate(8192, 8192, 128));
  // A layer's product of a large model: 600 to 720 TFLOP/s on H100 (see calibration.cc).
  EXPECT_GT(rate(8192, 8192, 8192), 600e12);
  EXPECT_LT(rate(8192, 8192, 8192), 720e12);
}

TEST(CatalogueTest, ACapOnPowerTakesLessThanItsShare) {
  EXPECT_EQ(PowerShare(0, 700), 1);
  EXPECT_EQ(PowerShare(700, 700), 1);
  EXPECT_LT(PowerShare(500, 700), 1);
  EXPECT_GT(PowerShare(500, 700), 500.0 / 700);
}

TEST(CatalogueTest, DevicesAreFoundByTheNamesThatDriversGiveThem) {
  constexpr int64_t kGb = 1'000'000'000;
  const auto name = [](std::string_view driver, int64_t memory) {
    const auto device = FindDriverDevice(driver, memory);
    return device.ok() ? device->name : std::string_view("none");
  };
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3", 85 * kGb), "H100-80GB");
  EXPECT_EQ(name("NVIDIA H100 PCIe", 85 * kGb), "H100-PCIE-80GB");
  EXPECT_EQ(name("NVIDIA H200", 150 * kGb), "H200-141GB");
  EXPECT_EQ(name("NVIDIA A100-SXM4-40GB", 42 * kGb), "A100-40GB");
  EXPECT_EQ(name("NVIDIA A100-PCIE-40GB", 42 * kGb), "A100-PCIE-40GB");
  EXPECT_EQ(name("Tesla V100-SXM2-32GB", 34 * kGb), "V100-32GB");
  EXPECT_EQ(name("NVIDIA GeForce RTX 4090", 25 * kGb), "RTX4090-24GB");
  EXPECT_EQ(name("NVIDIA A10", 24 * kGb), "none");
}

}  // namespace
}  // namespace terrace
