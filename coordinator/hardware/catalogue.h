// Named devices and the nodes they usually stand in, for what-if plans: datasheet numbers, each
// with its source. What is reached of them is calibration.h's.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/hardware/calibration.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// A link by name: "nvlink4", "pcie5", "ib-ndr400", "eth-100".
struct CatalogueLink {
  std::string_view name;
  enum class Kind { kNode, kHost, kNetwork } kind = Kind::kNode;
  double bytes_per_second = 0;  // of one device, one direction, on the wire
  std::string_view source;
};
const std::vector<CatalogueLink>& LinkCatalogue();
// INVALID_ARGUMENT with the nearest name and the names there are.
absl::StatusOr<CatalogueLink> FindLink(std::string_view name, CatalogueLink::Kind kind);

struct CatalogueDevice {
  std::string_view name;                  // "H100-80GB"
  std::vector<std::string_view> aliases;  // "h100", in lower case
  Generation generation = Generation::kHopper;
  int64_t memory_bytes = 0;  // as the driver reports it
  int64_t multiprocessors = 0;
  double f32_flops_per_second = 0;   // dense, without tensor cores
  double bf16_flops_per_second = 0;  // dense, f32 accumulation; without such units the f32 rate
  double fp8_flops_per_second = 0;   // dense; 0: no such units
  double memory_bytes_per_second = 0;
  double power_share = 1;      // of the matmul rate, under a cap on power
  std::string_view node_link;  // between the devices of a node, as in LinkCatalogue()
  std::string_view host_link;
  std::string_view network_link;  // of one device
  uint32_t node_devices = 8;      // of the usual node
  int64_t host_memory_bytes = 0;  // of the usual node
  std::string_view source;
  double fp16_flops_per_second = 0;  // dense, f32 accumulation; 0: as bf16
};
// Empty, or one sentence: why no backend of Terrace runs on it, so that plans are arithmetic only.
std::string_view WhyNotRunnable(const CatalogueDevice& device);

// Sorted by name.
const std::vector<CatalogueDevice>& Catalogue();

// By name or alias, in any case. NOT_FOUND with the nearest name and the names there are.
absl::StatusOr<CatalogueDevice> FindDevice(std::string_view name);

// By the name that NVIDIA's driver gives a device ("NVIDIA H100 80GB HBM3") and the memory that it
// reports: the entry whose model the name holds and whose memory is nearest. NOT_FOUND when no
// model is in it.
absl::StatusOr<CatalogueDevice> FindDriverDevice(std::string_view driver_name,
                                                 int64_t memory_bytes);

// What links of a profile are made from: bytes a second and seconds as collectives see them.
v1::LinkRate NodeRate(const CatalogueLink& link);
v1::LinkRate NetworkRate(const CatalogueLink& link);

// The peaks of the datasheet, and in `kernels` and `links` what is reached of them. Links of the
// usual node, `devices_per_node` 0: as many as it usually has.
v1::HardwareProfile ProfileOf(const CatalogueDevice& device, uint32_t devices_per_node = 0);

}  // namespace terrace
