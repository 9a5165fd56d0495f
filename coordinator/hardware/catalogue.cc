// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/catalogue.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/strings.h"

namespace terrace {
namespace {

using Kind = CatalogueLink::Kind;

std::string Lower(std::string_view name) { return absl::AsciiStrToLower(Absl(name)); }

std::string NotThere(std::string_view what, std::string_view name,
                     const std::vector<std::string_view>& names,
                     const std::vector<std::string_view>& aliases = {}) {
  std::string_view near = Nearest(Lower(name), aliases);
  if (near.empty()) near = Nearest(Lower(name), names);
  std::vector<absl::string_view> all;
  for (std::string_view one : names) all.push_back(Absl(one));
  return absl::StrCat(Absl(what), " '", Absl(name), "' is not in the catalogue",
                      near.empty() ? "" : "; did you mean '", Absl(near), near.empty() ? "" : "'?",
                      near.empty() ? ", which has " : " It has ", absl::StrJoin(all, ", "));
}

}  // namespace

std::string_view WhyNotRunnable(const CatalogueDevice& device) {
  switch (device.generation) {
    case Generation::kVolta:
      return "this plan is arithmetic alone: Terrace's CUDA kernels run from compute capability "
             "8.0 "
             "on (A100 and later), and a V100 has 7.0";
    case Generation::kCdna3:
      return "this plan is arithmetic alone: Terrace has kernels for NVIDIA's GPUs and for CPUs, "
             "and "
             "none for AMD's GPUs";
    default:  // sm_80 and sm_90a are compiled, what comes after them runs the PTX of compute_80
      return "";
  }
}

absl::StatusOr<CatalogueLink> FindLink(std::string_view name, Kind kind) {
  std::vector<std::string_view> names;
  for (const CatalogueLink& link : LinkCatalogue()) {
    if (link.kind != kind) continue;
    if (link.name == Lower(name)) return link;
    names.push_back(link.name);
  }
  return absl::NotFoundError(NotThere("link", name, names));
}

absl::StatusOr<CatalogueDevice> FindDevice(std::string_view name) {
  const std::string lower = Lower(name);
  std::vector<std::string_view> names, aliases;
  for (const CatalogueDevice& device : Catalogue()) {
    names.push_back(device.name);
    if (Lower(device.name) == lower) return device;
    for (std::string_view alias : device.aliases) {
      if (alias == lower) return device;
      aliases.push_back(alias);
    }
  }
  return absl::NotFoundError(NotThere("device", name, names, aliases));
}

absl::StatusOr<CatalogueDevice> FindDriverDevice(std::string_view driver_name,
                                                 int64_t memory_bytes) {
  std::string words = Lower(driver_name);
  std::erase_if(words, [](char c) { return c == ' ' || c == '-'; });
  const bool pcie = words.find("pcie") != std::string::npos;
  const CatalogueDevice* found = nullptr;
  for (const CatalogueDevice& device : Catalogue()) {
    const std::string name = Lower(device.name);
    if (words.find(name.substr(0, name.find('-'))) == std::string::npos) continue;
    if ((name.find("-pcie") != std::string::npos) != pcie) continue;
    if (found == nullptr || std::abs(device.memory_bytes - memory_bytes) <
                                std::abs(found->memory_bytes - memory_bytes)) {
      found = &device;
    }
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(absl::StrCat("the catalogue of devices knows no ", Absl(driver_name)));
}

v1::LinkRate NodeRate(const CatalogueLink& link) {
  // Without NVLink or its like the host's bridge is between the devices.
  const bool bridge = link.name.substr(0, 4) == "pcie";
  const LinkEfficiency& reached = bridge ? PcieEfficiency() : NvlinkEfficiency();
  v1::LinkRate rate;
  rate.set_scope("node");
  rate.set_bytes_per_second(link.bytes_per_second * reached.share);
  rate.set_latency_seconds(reached.latency_seconds);
  return rate;
}

v1::LinkRate NetworkRate(const CatalogueLink& link) {
  v1::LinkRate rate;
  rate.set_scope("network");
  rate.set_bytes_per_second(link.bytes_per_second * NetworkEfficiency().share);
  rate.set_latency_seconds(NetworkEfficiency().latency_seconds);
  return rate;
}

}  // namespace terrace
