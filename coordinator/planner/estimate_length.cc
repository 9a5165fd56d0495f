// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_length.h"

#include <algorithm>

#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

// Instructions of a layer there and back, and of one step round a context ring.
constexpr double kOfPass = 45, kOfRingStep = 10;
// Of a tile: it is multiplied three times; it comes twice, its gradient leaves.
constexpr double kOfTile = 3, kOfTilePrefetched = 3;
// Of a chunk: weights come forward and backward, gradients come and go, the optimizer's operands
// come and go.
constexpr double kOfWeights = 2, kOfGradients = 2, kOfOptimizer = 6;

double Copies(const v1::TierShares& shares) { return shares.host() + 2 * shares.nvme(); }

}  // namespace

double ProgramLength(const EstimateModel& model, const v1::Layout& layout) {
  const bool ring = layout.context_type() != "ulysses";
  const double turns = ring ? layout.context_parallel() - 1.0 : 0;
  const auto batches = static_cast<double>(CompiledMicroBatches(layout));
  const double runs = InRuns(layout.schedule()) ? 1 : batches;
  double length =
      batches * static_cast<double>(model.config.layers) * (kOfPass + kOfRingStep * turns);
  const double parameters = static_cast<double>(model.layer_parameters * model.config.layers +
                                                model.embedding_parameters + model.head_parameters);
  if (const int64_t tile = TileBytes(layout); tile > 0) {
    length += (batches * kOfTile + runs * kOfTilePrefetched) * kF32Bytes * parameters /
              static_cast<double>(tile);
  }
  if (!layout.has_offload()) return length;
  const v1::Offload& offload = layout.offload();
  const double chunk = static_cast<double>(std::max<int64_t>(1, layout.chunk_bytes()));
  const double whole = kF32Bytes * parameters / layout.tensor_parallel() / chunk;
  const double share = whole / static_cast<double>(ShardRanks(layout));
  length += runs *
            (kOfWeights * Copies(offload.parameter()) +
             GradientShare(layout) * kOfGradients * Copies(offload.gradient())) *
            share;
  return length + kOfOptimizer * Copies(offload.optimizer()) * share;
}

int64_t LayerPasses(const v1::Layout& layout, int64_t layers) {
  return layers * CompiledMicroBatches(layout);
}

}  // namespace terrace
