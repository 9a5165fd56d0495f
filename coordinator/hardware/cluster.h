// What-if hardware: named devices in equal nodes, for plans without a machine.
//
// "h100x8:128" is 128 nodes of 8 H100: device, devices of a node, nodes, with links and memory from
// the catalogue. cluster_file.h reads what the catalogue does not have. A cluster fills what a
// spec's resources leave open and refuses what contradicts it; no worker is asked.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/hardware/budget.h"
#include "coordinator/hardware/catalogue.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

inline constexpr uint32_t kClusterNodesMax = 16384;  // as of resources.nodes
inline constexpr uint32_t kNodeDevicesMax = 64;      // as of resources.devices_per_node

struct Cluster {
  std::string name;  // as messages call it
  uint32_t nodes = 1;
  uint32_t devices_per_node = 8;
  v1::HardwareProfile profile;
  int64_t device_memory_bytes = 0;  // of one device, all of it
  int64_t overhead_bytes = 0;       // of it, outside the arena
  int64_t host_memory_bytes = 0;    // of one node
  std::string why_not_runnable;     // of its devices (WhyNotRunnable); empty: jobs can run there
};

// Of catalogue devices and links. `devices_per_node` 0: as many as its nodes usually have.
Cluster ClusterOf(const CatalogueDevice& device, uint32_t devices_per_node, uint32_t nodes);

// DEVICE, DEVICExN or DEVICExN:NODES. NOT_FOUND with the nearest name for an unknown device,
// INVALID_ARGUMENT for numbers that cannot be.
absl::StatusOr<Cluster> ParseCluster(std::string_view text);

// Which counts a person wrote: a spec that says nothing of them has 1, as one that says 1.
struct WrittenCounts {
  bool nodes = false;
  bool devices_per_node = false;
};

// Fills spec.resources from the cluster where they are open (nodes and devices that are 1 and not
// written, no device_memory, no host_memory); a job may use a part. INVALID_ARGUMENT names the key
// that asks for more than the cluster has, or for another device.
absl::Status ApplyCluster(const Cluster& cluster, v1::JobSpec* spec,
                          const WrittenCounts& written = {});

// For a spec that ApplyCluster passed.
Budget WhatIfBudget(const v1::JobSpec& spec, const Cluster& cluster);

}  // namespace terrace
