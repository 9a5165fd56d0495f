// What the time model reads off a profile, and the profile it computes with when no worker has
// measured anything and no hardware is named (catalogue.h).
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "proto/v1/plan.pb.h"

namespace terrace {

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
// worker names its own in the profile it measures: "amx_bf16" and "avx512_bf16" in it raise the
// bf16 rate.
v1::HardwareProfile CpuProfile(uint32_t cores, std::string_view instruction_set = "");

}  // namespace terrace
