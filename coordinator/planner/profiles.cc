// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/profiles.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr int64_t kGB = 1'000'000'000;
constexpr double kTera = 1e12;

// PCIe x16, one direction: 31.5 and 63.0 GB/s on the wire (PCI-SIG base specifications 4.0
// and 5.0), of which packet headers of 24 bytes on payloads of 256 leave nine tenths.
constexpr double kPcie4 = 28.8e9, kPcie5 = 57.6e9;
// Both directions share the root port's and the memory's queues.
constexpr double kCopyDuplexRatio = 0.9;

// One data-centre drive: Samsung PM9A3 datasheet (PCIe 4.0 x4), sequential reads and writes.
constexpr double kDriveRead = 6.8e9, kDriveWrite = 4.0e9;
// Two sockets of an x86 server of the devices' time, what a vector update reaches of their memory.
constexpr double kServerMemory = 300e9;

}  // namespace

const std::vector<CatalogueDevice>& Catalogue() {
  static const auto* devices = new std::vector<CatalogueDevice>{
      {"A100-40GB", 40 * kGB, 19.5 * kTera, 312 * kTera, 1.555 * kTera, 300e9, kPcie4,
       "NVIDIA A100 datasheet (SXM4, 40 GB), 2021; host: PCIe 4.0 x16"},
      {"A100-80GB", 80 * kGB, 19.5 * kTera, 312 * kTera, 2.039 * kTera, 300e9, kPcie4,
       "NVIDIA A100 datasheet (SXM4, 80 GB), 2021; host: PCIe 4.0 x16"},
      {"H100-80GB", 80 * kGB, 67 * kTera, 989.4 * kTera, 3.35 * kTera, 450e9, kPcie5,
       "NVIDIA H100 datasheet (SXM5), 2023; host: PCIe 5.0 x16"},
      {"H200-141GB", 141 * kGB, 67 * kTera, 989.4 * kTera, 4.8 * kTera, 450e9, kPcie5,
       "NVIDIA H200 datasheet (SXM), 2024; host: PCIe 5.0 x16"},
      {"L40S-48GB", 48 * kGB, 91.6 * kTera, 362 * kTera, 0.864 * kTera, 32e9, kPcie4,
       "NVIDIA L40S datasheet, 2023; link: PCIe 4.0 x16"},
      {"RTX4090-24GB", 24 * kGB, 82.6 * kTera, 165.2 * kTera, 1.008 * kTera, 32e9, kPcie4,
       "NVIDIA Ada architecture whitepaper, 2022; link: PCIe 4.0 x16"},
  };
  return *devices;
}

absl::StatusOr<CatalogueDevice> FindDevice(std::string_view name) {
  std::string names;
  for (const CatalogueDevice& device : Catalogue()) {
    if (device.name == name) return device;
    absl::StrAppend(&names, names.empty() ? "" : ", ", Absl(device.name));
  }
  return absl::NotFoundError(
      absl::StrCat("device '", Absl(name), "' is not in the catalogue, which has ", names));
}

v1::HardwareProfile ProfileOf(const CatalogueDevice& device) {
  v1::HardwareProfile profile;
  profile.set_name(std::string(device.name));
  profile.set_f32_flops_per_second(device.f32_flops_per_second);
  profile.set_bf16_flops_per_second(device.bf16_flops_per_second);
  profile.set_memory_bytes_per_second(device.memory_bytes_per_second);
  profile.set_link_bytes_per_second(device.link_bytes_per_second);
  profile.set_link_latency_seconds(5e-6);
  profile.set_instruction_overhead_seconds(3e-6);
  profile.set_to_device_bytes_per_second(device.copy_bytes_per_second);
  profile.set_to_host_bytes_per_second(device.copy_bytes_per_second);
  profile.set_copy_duplex_ratio(kCopyDuplexRatio);
  profile.set_host_memory_bytes_per_second(kServerMemory);
  return profile;
}

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
  const bool amx = instruction_set.find("amx_bf16") != std::string_view::npos;
  const double count = std::max<uint32_t>(1, cores);
  v1::HardwareProfile profile;
  profile.set_name(absl::StrCat("cpu, ", cores, cores == 1 ? " core" : " cores"));
  profile.set_f32_flops_per_second(kCoreFlops * count);
  profile.set_bf16_flops_per_second((amx ? kAmxCoreFlops : kCoreFlops) * count);
  profile.set_memory_bytes_per_second(std::min(kCoreBytes * count, kSocketBytes));
  profile.set_link_bytes_per_second(1.4e9);
  profile.set_link_latency_seconds(50e-6);
  profile.set_instruction_overhead_seconds(5e-6);
  return profile;
}

}  // namespace terrace
