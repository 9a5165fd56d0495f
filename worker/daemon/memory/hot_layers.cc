// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/hot_layers.h"

#include <algorithm>
#include <map>

#include "proto/program/sequences.h"
#include "proto/report/layer_memory.h"

namespace terrace {

std::vector<HotLayer> HotLayersOf(const v1::Program& program, const LiveMemory& live) {
  std::map<v1::Tier, std::map<std::string, int64_t>> most;  // over the lengths of a step
  for (int i = 0; i < program.sequences_size(); ++i) {
    if (!IsTrain(program.sequences(i).name())) continue;
    for (const LayerMemory& memory : LayersAtPeak(live, i)) {
      for (const LayerHeld& held : memory.layers) {
        int64_t& bytes = most[memory.tier][held.layer];
        bytes = std::max(bytes, held.most_bytes);
      }
    }
  }
  std::vector<HotLayer> hot;
  for (const auto& [tier, layers] : most) {
    std::vector<HotLayer> of_tier;
    for (const auto& [layer, bytes] : layers) of_tier.push_back({tier, layer, bytes});
    std::stable_sort(of_tier.begin(), of_tier.end(),
                     [](const HotLayer& a, const HotLayer& b) { return a.bytes > b.bytes; });
    of_tier.resize(std::min(of_tier.size(), kHotLayersMax));
    hot.insert(hot.end(), of_tier.begin(), of_tier.end());
  }
  return hot;
}

}  // namespace terrace
