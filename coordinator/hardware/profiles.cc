// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/profiles.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr double kTera = 1e12;

// One data-centre drive: Samsung PM9A3 datasheet (PCIe 4.0 x4), sequential reads and writes.
constexpr double kDriveRead = 6.8e9, kDriveWrite = 4.0e9;

}  // namespace

TierRates TierRatesOf(const v1::HardwareProfile& profile) {
  const auto given_or = [](double given, double otherwise) {
    return std::max(1.0, given > 0 ? given : otherwise);
  };
  const double copy = profile.memory_bytes_per_second() / 2;
  return {.to_device = given_or(profile.to_device_bytes_per_second(), copy),
          .to_host = given_or(profile.to_host_bytes_per_second(), copy),
          .nvme_read = given_or(profile.nvme_read_bytes_per_second(), kDriveRead),
          .nvme_write = given_or(profile.nvme_write_bytes_per_second(), kDriveWrite),
          .host_memory =
              given_or(profile.host_memory_bytes_per_second(), profile.memory_bytes_per_second())};
}

v1::HardwareProfile CpuProfile(uint32_t cores, std::string_view instruction_set) {
  // Two cores of a server share about 28 GB/s of memory, and a socket stops near 200 GB/s.
  constexpr double kCoreFlops = 0.15 * kTera, kCoreBytes = 14e9, kSocketBytes = 200e9;
  constexpr double kAmxCoreFlops = 1.0 * kTera;  // what large products reach, of 3.5 at the peak
  const auto has = [&](std::string_view name) {
    return instruction_set.find(name) != std::string_view::npos;
  };
  const double bf16_core_flops = has("amx_bf16")      ? kAmxCoreFlops
                                 : has("avx512_bf16") ? 2 * kCoreFlops  // pairs of products
                                                      : kCoreFlops;
  const double count = std::max<uint32_t>(1, cores);
  v1::HardwareProfile profile;
  profile.set_name(absl::StrCat("cpu, ", cores, cores == 1 ? " core" : " cores"));
  profile.set_f32_flops_per_second(kCoreFlops * count);
  profile.set_bf16_flops_per_second(bf16_core_flops * count);
  profile.set_memory_bytes_per_second(std::min(kCoreBytes * count, kSocketBytes));
  profile.set_link_bytes_per_second(1.4e9);
  profile.set_link_latency_seconds(50e-6);
  profile.set_instruction_overhead_seconds(5e-6);
  return profile;
}

}  // namespace terrace
