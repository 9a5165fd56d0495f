// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/cluster.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

// Of a node's memory, what ranks may have: the rest is the system's and the loaders'.
constexpr double kRankMemoryShare = 0.9;

absl::Status Impossible(std::string_view text, std::string_view what, std::string_view got,
                        uint32_t most) {
  return absl::InvalidArgumentError(
      absl::StrCat("--cluster ", Absl(text), ": ", Absl(what), ": got '", Absl(got),
                   "', must be a whole number from 1 to ", most, "; try h100x8:128"));
}

bool IsNumber(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

absl::Status ReadCount(std::string_view text, std::string_view what, std::string_view written,
                       uint32_t most, uint32_t* count) {
  if (!IsNumber(written) || !absl::SimpleAtoi(Absl(written), count) || *count < 1 ||
      *count > most) {
    return Impossible(text, what, written, most);
  }
  return absl::OkStatus();
}

absl::Status TooMuch(std::string_view key, const std::string& got, const std::string& has,
                     const Cluster& cluster) {
  return absl::InvalidArgumentError(absl::StrCat(Absl(key), ": got ", got, ", but the cluster ",
                                                 cluster.name, " has ", has,
                                                 "; leave the key out to use all of it"));
}

absl::Status ApplyCounts(const Cluster& cluster, const WrittenCounts& written,
                         v1::ResourceSpec* resources) {
  const bool open = !written.nodes && resources->nodes_max() <= 1;
  if (resources->nodes_min() > cluster.nodes) {
    return TooMuch("resources.nodes", absl::StrCat(resources->nodes_min()),
                   absl::StrCat(cluster.nodes), cluster);
  }
  const uint32_t nodes = open ? cluster.nodes : std::min(resources->nodes_max(), cluster.nodes);
  resources->set_nodes_min(open ? nodes : std::min(resources->nodes_min(), nodes));
  resources->set_nodes_max(nodes);
  if (resources->devices_per_node() > cluster.devices_per_node) {
    return TooMuch("resources.devices_per_node", absl::StrCat(resources->devices_per_node()),
                   absl::StrCat(cluster.devices_per_node), cluster);
  }
  if (!written.devices_per_node && resources->devices_per_node() <= 1) {
    resources->set_devices_per_node(cluster.devices_per_node);
  }
  return absl::OkStatus();
}

}  // namespace

Cluster ClusterOf(const CatalogueDevice& device, uint32_t devices_per_node, uint32_t nodes) {
  Cluster cluster;
  cluster.devices_per_node = devices_per_node > 0 ? devices_per_node : device.node_devices;
  cluster.nodes = nodes;
  cluster.name = absl::StrCat(Absl(device.name), "x", cluster.devices_per_node, ":", nodes);
  cluster.profile = ProfileOf(device, cluster.devices_per_node);
  cluster.device_memory_bytes = device.memory_bytes;
  cluster.overhead_bytes = OverheadOf(device.generation).total();
  cluster.host_memory_bytes = device.host_memory_bytes;
  cluster.why_not_runnable = std::string(WhyNotRunnable(device));
  return cluster;
}

absl::StatusOr<Cluster> ParseCluster(std::string_view text) {
  std::string_view device = text.substr(0, text.find(':'));
  uint32_t nodes = 1, devices = 0;
  if (device.size() < text.size()) {
    RETURN_IF_ERROR(
        ReadCount(text, "nodes", text.substr(device.size() + 1), kClusterNodesMax, &nodes));
  }
  // A device's name may end in an x of its own.
  const size_t cross = device.find_last_of("xX");
  const bool counted = cross != std::string_view::npos && cross > 0 && !FindDevice(device).ok();
  if (counted && (IsNumber(device.substr(cross + 1)) || device.substr(cross + 1).empty() ||
                  device[cross + 1] == '-')) {
    RETURN_IF_ERROR(
        ReadCount(text, "devices of a node", device.substr(cross + 1), kNodeDevicesMax, &devices));
    device = device.substr(0, cross);
  }
  ASSIGN_OR_RETURN(const CatalogueDevice found, FindDevice(device));
  return ClusterOf(found, devices, nodes);
}

absl::Status ApplyCluster(const Cluster& cluster, v1::JobSpec* spec, const WrittenCounts& written) {
  v1::ResourceSpec* resources = spec->mutable_resources();
  if (resources->device() == "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.device: got cpu, but the cluster ", cluster.name,
                     " has other devices; leave the key out, or plan without --cluster"));
  }
  RETURN_IF_ERROR(ApplyCounts(cluster, written, resources));
  if (resources->device_memory() > cluster.device_memory_bytes) {
    return TooMuch("resources.device_memory", absl::StrCat(resources->device_memory(), " bytes"),
                   absl::StrCat(cluster.device_memory_bytes, " a device"), cluster);
  }
  if (resources->device_memory() == 0) resources->set_device_memory(cluster.device_memory_bytes);
  const int64_t host = static_cast<int64_t>(static_cast<double>(cluster.host_memory_bytes) *
                                            kRankMemoryShare / resources->devices_per_node());
  if (resources->host_memory() > host && host > 0) {
    return TooMuch("resources.host_memory", absl::StrCat(resources->host_memory(), " bytes a rank"),
                   absl::StrCat(host, " for each of ", resources->devices_per_node(), " ranks"),
                   cluster);
  }
  if (resources->host_memory() == 0) resources->set_host_memory(host);
  return absl::OkStatus();
}

Budget WhatIfBudget(const v1::JobSpec& spec, const Cluster& cluster) {
  Budget budget;
  budget.nodes = NodesFor(spec);
  budget.ranks = budget.nodes * std::max<uint32_t>(1, spec.resources().devices_per_node());
  budget.device = "cuda";  // the catalogue's are GPUs: programs, workspaces and pages are theirs
  budget.device_memory_bytes = spec.resources().device_memory();
  budget.external_bytes = cluster.overhead_bytes;
  budget.profile = cluster.profile;
  budget.profile.set_ranks_per_node(spec.resources().devices_per_node());
  return budget;
}

}  // namespace terrace
