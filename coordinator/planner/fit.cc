// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/fit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

constexpr int kShareSteps = 64;

// Of a stage's layers, from none recomputed over all selective to all blocks.
RecomputeCounts CountsAt(int64_t step, int64_t layers) {
  if (step <= layers) return {layers - step, step, 0};
  return {0, 2 * layers - step, step - layers};
}

// The smallest step in [0, 2 layers] that keeps the stage within `bytes`; -1: none does.
int64_t LeastStep(const MemoryEstimator& estimator, const v1::Layout& layout,
                  const EstimatedStage& stage, int64_t bytes) {
  for (int64_t step = 0; step <= 2 * stage.layers; ++step) {
    const RecomputeCounts counts = CountsAt(step, stage.layers);
    if (estimator.StageMemory(layout, stage, &counts).total() <= bytes) return step;
  }
  return -1;
}

// One name a layer, of the stages' counts: a stage's strongest first.
std::vector<std::string> Names(const v1::Layout& layout, int64_t layers,
                               std::vector<RecomputeCounts> counts) {
  static constexpr const char* kNames[] = {"none", "selective", "block"};
  std::vector<std::string> names;
  const std::vector<int64_t> chunks = ChunkLayers(layout, layers);
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(chunks.size()); ++chunk) {
    RecomputeCounts& left = counts[StageOfChunk(layout, chunk)];
    for (int64_t i = 0; i < chunks[chunk]; ++i) {
      int kind = 2;
      while (kind > 0 && left[kind] == 0) --kind;
      --left[kind];
      names.emplace_back(kNames[kind]);
    }
  }
  return names;
}

void Set(double host, double nvme, v1::TierShares* shares) {
  shares->set_device(1 - host - nvme);
  shares->set_host(host);
  shares->set_nvme(nvme);
}

// On a way to NVMe: what of the weights and of the optimizer's states stays on the device.
struct Kept {
  double weights = 0;
  double optimizer = 0;
};

// What rests: on NVMe at most `x` of all, on the host what is left.
void Rest(double kept, double x, v1::TierShares* shares) {
  const double nvme = std::min(x, 1 - kept);
  Set(1 - kept - nvme, nvme, shares);
}

// What the way asks for when `x` of what it moves is away. Whole weights stay with ZeRO 1 and 2.
v1::Offload OffloadAt(OffloadWay way, double x, const Kept& kept, bool weights_stay) {
  v1::Offload offload;
  const auto weights = [&](double host, double nvme) {
    if (!weights_stay) Set(host, nvme, offload.mutable_parameter());
  };
  switch (way) {
    case OffloadWay::kOptimizerToHost:
      Set(x, 0, offload.mutable_optimizer());
      break;
    case OffloadWay::kWeightsToHostToo:
      Set(1, 0, offload.mutable_optimizer());
      weights(x, 0);
      break;
    case OffloadWay::kActivationsToHost:
      Set(x, 0, offload.mutable_activation());
      break;
    case OffloadWay::kAllToHost:
      Set(1, 0, offload.mutable_optimizer());
      weights(1, 0);
      Set(x, 0, offload.mutable_activation());
      break;
    case OffloadWay::kOptimizerToNvme:
      Rest(kept.optimizer, x, offload.mutable_optimizer());
      break;
    case OffloadWay::kOptimizerToNvmeWeightsToHost:
      Rest(0, x, offload.mutable_optimizer());
      weights(1 - kept.weights, 0);
      break;
    case OffloadWay::kAllToNvme:
      Rest(kept.optimizer, 1, offload.mutable_optimizer());
      Rest(kept.optimizer, x, offload.mutable_gradient());
      if (!weights_stay) Rest(kept.weights, x, offload.mutable_parameter());
      break;
    case OffloadWay::kActivationsToHostToo:
      Set(0, 1, offload.mutable_optimizer());
      Set(0, 1, offload.mutable_gradient());
      weights(0, 1);
      Set(x, 0, offload.mutable_activation());
      break;
  }
  return offload;
}

// States are shared between host and NVMe: the host's limit decides how.
bool SharesStates(OffloadWay way) {
  return way == OffloadWay::kOptimizerToNvme || way == OffloadWay::kOptimizerToNvmeWeightsToHost ||
         way == OffloadWay::kAllToNvme;
}

// The way with this many 64ths kept, of weights and then of states: 0 to 128.
Kept KeptAt(OffloadWay way, int step) {
  const double kept = static_cast<double>(step) / kShareSteps;
  if (way == OffloadWay::kOptimizerToNvme) return {.weights = 1, .optimizer = kept};
  if (way == OffloadWay::kOptimizerToNvmeWeightsToHost) return {.weights = kept};
  return {.weights = std::min(1.0, kept), .optimizer = std::max(0.0, kept - 1)};
}

// The least step from 0 on that is enough; `most`, which is not asked for, where none before it is.
template <typename Enough>
int LeastEnough(int most, const Enough& enough) {
  int low = -1, high = most;  // not enough, enough if any is
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

bool Within(const MemoryEstimate& memory, const ArenaLimits& limits) {
  const auto fits = [](int64_t bytes, int64_t limit) { return limit == 0 || bytes <= limit; };
  return fits(memory.total(), limits.device_bytes) && fits(memory.host_bytes, limits.host_bytes) &&
         fits(memory.nvme_bytes, limits.nvme_bytes);
}

std::optional<v1::Layout> WithRecompute(const MemoryEstimator& estimator, v1::Layout layout,
                                        const std::vector<int64_t>& stage_bytes) {
  layout.set_recompute("none");
  layout.clear_recompute_layers();
  std::vector<RecomputeCounts> counts;
  for (const EstimatedStage& stage : estimator.model().Stages(layout)) {
    const int64_t step = LeastStep(estimator, layout, stage, stage_bytes[counts.size()]);
    if (step < 0) return std::nullopt;
    counts.push_back(CountsAt(step, stage.layers));
  }
  const std::vector<std::string> names =
      Names(layout, estimator.model().config.layers, std::move(counts));
  if (std::all_of(names.begin(), names.end(),
                  [&](const std::string& name) { return name == names[0]; })) {
    layout.set_recompute(names[0]);
    return layout;
  }
  // The strongest of them in one word; all layers so would fit too.
  const bool block = std::find(names.begin(), names.end(), "block") != names.end();
  layout.set_recompute(block ? "block" : "selective");
  for (const std::string& name : names) layout.add_recompute_layers(name);
  return layout;
}

v1::Offload WithPinned(const v1::Offload& pinned, v1::Offload proposed) {
  if (pinned.has_parameter()) *proposed.mutable_parameter() = pinned.parameter();
  if (pinned.has_gradient()) *proposed.mutable_gradient() = pinned.gradient();
  if (pinned.has_optimizer()) *proposed.mutable_optimizer() = pinned.optimizer();
  if (pinned.has_activation()) *proposed.mutable_activation() = pinned.activation();
  return proposed;
}

v1::Offload FarthestOffload(OffloadWay way) {
  return OffloadAt(way, 1, Kept(), /*weights_stay=*/false);
}

std::optional<v1::Layout> WithOffload(const MemoryEstimator& estimator, const v1::Layout& layout,
                                      const v1::Offload& pinned, OffloadWay way,
                                      const ArenaLimits& limits) {
  const bool weights_stay = layout.zero_stage() == 1 || layout.zero_stage() == 2;
  const auto at = [&](int step, const Kept& kept) {
    const double x = static_cast<double>(step) / kShareSteps;
    v1::Layout moved = layout;
    *moved.mutable_offload() = WithPinned(pinned, OffloadAt(way, x, kept, weights_stay));
    return Completed(std::move(moved));
  };
  const auto on_device = [&](int step, const Kept& kept) {
    return limits.device_bytes == 0 ||
           estimator.Memory(at(step, kept)).total() <= limits.device_bytes;
  };
  const auto on_host = [&](int step, const Kept& kept) {
    return limits.host_bytes == 0 ||
           estimator.Memory(at(step, kept)).host_bytes <= limits.host_bytes;
  };
  Kept kept;
  if (SharesStates(way)) {
    const int most = way == OffloadWay::kAllToNvme ? 2 * kShareSteps : kShareSteps;
    const int left = LeastEnough(
        most, [&](int less) { return on_device(kShareSteps, KeptAt(way, most - less)); });
    kept = KeptAt(way, most - left);
  }
  const int away = LeastEnough(kShareSteps, [&](int step) {
    return SharesStates(way) ? on_host(step, kept) : on_device(step, kept);
  });
  v1::Layout moved = at(away, kept);
  if (!Within(estimator.Memory(moved), limits)) return std::nullopt;
  return moved;
}

std::vector<int64_t> BalancedLayers(int64_t chunks, int64_t layers, double head_layers) {
  if (chunks == 1) return {layers};
  // The longest chunk, in layers with the head: no less than even, and some chunk is that long.
  int64_t last = 1;
  double best = 1e300;
  for (int64_t candidate = layers / chunks; candidate >= 1; --candidate) {
    const int64_t others = (layers - candidate + chunks - 2) / (chunks - 1);
    const double longest =
        std::max(static_cast<double>(candidate) + head_layers, static_cast<double>(others));
    if (longest >= best) continue;
    best = longest;
    last = candidate;
  }
  std::vector<int64_t> split(chunks, (layers - last) / (chunks - 1));
  split.back() = last;
  // The first chunk holds the most activations at once, so the longer ones come late.
  const int64_t longer = (layers - last) % (chunks - 1);
  for (int64_t i = 0; i < longer; ++i) ++split[chunks - 2 - i];
  return split;
}

}  // namespace terrace
