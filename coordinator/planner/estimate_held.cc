// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_held.h"

#include <algorithm>

#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

// Megatron's order: `stages` micro-batches go through a chunk before the next chunk's turn.
int64_t InterleavedLayers(int64_t held, int64_t batches, int64_t stages,
                          std::span<const int64_t> chunk_layers) {
  const int64_t round = stages * static_cast<int64_t>(chunk_layers.size());
  const int64_t left = held % round;
  int64_t layers = 0;
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(chunk_layers.size()); ++chunk) {
    const int64_t passes =
        held / round * stages + std::clamp<int64_t>(left - chunk * stages, 0, stages);
    layers += std::min(passes, batches) * chunk_layers[chunk];
  }
  return layers;
}

// Stage s puts off the weight gradients of s micro-batches, and holds as many activations fewer.
HeldMoments ZeroBubbleH1(int64_t batches, int64_t stages, int64_t stage, int64_t layers) {
  const int64_t ahead = std::min(batches, stages - stage);
  const int64_t late = std::min(stage, batches - ahead);
  return {HeldLayers{ahead * layers, late * layers},
          HeldLayers{(ahead - 1) * layers, (late + 1) * layers},
          HeldLayers{0, std::min(batches, stage + 1) * layers}};
}

// In step the second chunk is held by as many micro-batches as there are stages before this one,
// and one; where the forward passes end, the stage puts off what fills its wait.
HeldMoments ZeroBubbleV(int64_t batches, int64_t stages, int64_t stage,
                        std::span<const int64_t> chunk_layers) {
  const int64_t down = chunk_layers[0], up = chunk_layers[1];
  const int64_t first = std::min(batches, 2 * stages - 1 - stage);
  const int64_t second = std::min(batches, stage + 1);
  const int64_t one = std::max(down, up);
  // A forward pass over the first chunk comes before or after one over the second has gone.
  const int64_t held = std::max(first * down + second * up, std::min(batches, first + 1) * down +
                                                                std::min(batches, stage) * up);
  // The order is made for as many micro-batches as fill it; the last of them end late.
  const int64_t made_for = std::max(batches, 2 * stages - 1);
  const int64_t late_first = std::clamp<int64_t>(batches - (made_for - stages), 0, stage + 1);
  const int64_t late_second = std::clamp<int64_t>(batches - (made_for - stage), 0, stage);
  const int64_t left =
      std::clamp<int64_t>(batches - (made_for - stages) - late_first, 0, stages - stage - 1);
  return {HeldLayers{held, 0}, HeldLayers{held - one, one},
          HeldLayers{left * down, late_first * down + late_second * up}};
}

}  // namespace

HeldMoments HeldMomentsOf(const v1::Layout& layout, int64_t stage,
                          std::span<const int64_t> chunk_layers) {
  const int64_t stages = layout.pipeline_parallel(), batches = layout.micro_batches();
  const auto chunks = static_cast<int64_t>(chunk_layers.size());
  if (layout.schedule() == "zb-h1") return ZeroBubbleH1(batches, stages, stage, chunk_layers[0]);
  if (layout.schedule() == "zbv") return ZeroBubbleV(batches, stages, stage, chunk_layers);
  if (layout.schedule() == "interleaved") {
    const int64_t ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages;
    // The order is made for the next multiple of `stages`.
    const int64_t all = (batches + stages - 1) / stages * stages * chunks;
    const int64_t held = std::min(all, ahead + 1);
    return {HeldLayers{InterleavedLayers(held, batches, stages, chunk_layers), 0}};
  }
  int64_t layers = 0;
  for (const int64_t of_chunk : chunk_layers) layers += of_chunk;
  const int64_t held =
      ForwardFirst(layout.schedule()) ? batches : std::min(batches, stages - stage);
  return {HeldLayers{held * layers, 0}};
}

}  // namespace terrace
