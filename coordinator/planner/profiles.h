// Hardware by name, for planning on paper: what the time model computes with when no worker has
// measured anything.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct CatalogueDevice {
  std::string_view name;  // "H100-80GB"
  int64_t memory_bytes = 0;
  double f32_flops_per_second = 0;   // dense, without tensor cores
  double bf16_flops_per_second = 0;  // dense
  double memory_bytes_per_second = 0;
  double link_bytes_per_second = 0;  // one direction
  double copy_bytes_per_second = 0;  // between host and device, one direction
  std::string_view source;
};

// Sorted by name.
const std::vector<CatalogueDevice>& Catalogue();

// NOT_FOUND with the names there are.
absl::StatusOr<CatalogueDevice> FindDevice(std::string_view name);

// The peak rates of the datasheet; no program reaches them.
v1::HardwareProfile ProfileOf(const CatalogueDevice& device);

// Bytes a second between tiers, of one direction alone.
struct TierRates {
  double to_device = 0;
  double to_host = 0;
  double nvme_read = 0;
  double nvme_write = 0;
  double host_memory = 0;  // of host computation
};
// Those of the profile; where it has 0: copies at half of memory's rate, since each byte is read
// and written; one data-centre drive on PCIe 4.0; the host's memory like the device's. Never 0.
TierRates TierRatesOf(const v1::HardwareProfile& profile);

// An ordinary server core with AVX-512, ranks linked by TCP on one host. `instruction_set` as a
// worker names its own in the profile it measures: "amx_bf16" in it raises the bf16 rate.
v1::HardwareProfile CpuProfile(uint32_t cores, std::string_view instruction_set = "");

}  // namespace terrace
