// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/budget.h"

#include <algorithm>

namespace terrace {

int64_t ArenaBytesOf(const Budget& budget) {
  if (budget.device_memory_bytes == 0) return 0;
  return std::max<int64_t>(1, budget.device_memory_bytes - budget.external_bytes);
}

uint32_t NodesFor(const v1::JobSpec& spec) {
  const v1::LayoutSpec& layout = spec.layout();
  const v1::ResourceSpec& resources = spec.resources();
  const uint32_t least = std::max<uint32_t>(1, resources.nodes_min());
  if (layout.dp() == 0) return least;
  uint64_t ranks = layout.dp();
  for (const uint64_t degree : {layout.tp(), layout.pp(), layout.cp()}) {
    ranks *= std::max<uint64_t>(1, degree);
  }
  const uint64_t devices = std::max<uint32_t>(1, resources.devices_per_node());
  const uint64_t nodes = (ranks + devices - 1) / devices;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(nodes, least, std::max(least, resources.nodes_max())));
}

}  // namespace terrace
