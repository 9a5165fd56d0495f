// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/catalogue.h"

#include <algorithm>
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
