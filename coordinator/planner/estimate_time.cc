// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_time.h"

#include <algorithm>
#include <string_view>

#include "coordinator/planner/profiles.h"

namespace terrace {
namespace {

// What is off the device, and what is on NVMe, of a class.
double Away(const v1::TierShares& shares) { return shares.host() + shares.nvme(); }

double RingSeconds(double bytes, int64_t ranks, const v1::HardwareProfile& profile) {
  const double rounds = static_cast<double>(ranks - 1);
  return rounds / static_cast<double>(ranks) * bytes /
             std::max(1.0, profile.link_bytes_per_second()) +
         rounds * profile.link_latency_seconds();
}

}  // namespace

double TimeEstimator::ComputeSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                     const v1::HardwareProfile& profile) const {
  // An ordinary layer and its backward pass.
  constexpr double kInstructionsPerLayer = 24;
  constexpr double kSelectiveShare = 0.1;  // of a forward pass
  const double micro_batches = layout.micro_batches();
  const double tokens = micro_batches * layout.micro_batch() *
                        static_cast<double>(model_.sequence) / layout.context_parallel();
  const bool bf16 = layout.precision() == "bf16";
  const double rate = bf16 ? profile.bf16_flops_per_second() : profile.f32_flops_per_second();
  const std::string_view recompute = RecomputeOf(layout);
  double again = recompute == "none" ? 0 : 1;  // forward passes in the backward pass
  if (recompute == "selective") again = kSelectiveShare;
  const double bytes = static_cast<double>(kF32Bytes * stage.parameters) / layout.tensor_parallel();
  const double arithmetic = stage.flops_per_token * (1 + again / 3) * tokens /
                            layout.tensor_parallel() / std::max(1.0, rate);
  // Each micro-batch reads the weights twice and adds to all gradients.
  const double weights =
      micro_batches * (4 + again) * bytes / std::max(1.0, profile.memory_bytes_per_second());
  const double overhead = micro_batches * (1 + again / 3) * kInstructionsPerLayer *
                          static_cast<double>(stage.layers) *
                          profile.instruction_overhead_seconds();
  return arithmetic + weights + overhead;
}

double TimeEstimator::LayerCommunicationSeconds(const v1::Layout& layout,
                                                const EstimatedStage& stage,
                                                const v1::HardwareProfile& profile) const {
  const int64_t tp = layout.tensor_parallel(), cp = layout.context_parallel();
  const double tokens =
      static_cast<double>(layout.micro_batch() * model_.sequence) / static_cast<double>(cp);
  const double row = tokens * static_cast<double>(model_.config.hidden * ElementBytes(layout));
  const double kv_row = row * static_cast<double>(model_.config.kv_heads) /
                        static_cast<double>(model_.config.heads) / static_cast<double>(tp);
  const bool again = RecomputeGroup(layout, stage.layers) > 0;
  double layer = 0;
  // Two all-reduces, each a reduce-scatter and an all-gather, in each direction.
  if (tp > 1) layer += (again ? 12 : 8) * RingSeconds(row, tp, profile);
  if (cp > 1 && layout.context_type() == "ulysses") {
    layer +=
        (again ? 3 : 2) * RingSeconds(2 * (row / static_cast<double>(tp) + kv_row), cp, profile);
  } else if (cp > 1) {
    // Keys and values round once forward; back again with their gradients.
    layer += (again ? 4 : 3) * static_cast<double>(cp) * RingSeconds(2 * kv_row, cp, profile);
  }
  const double transfers = layout.pipeline_parallel() > 1
                               ? 2 * layout.interleave() *
                                     (row / std::max(1.0, profile.link_bytes_per_second()) +
                                      profile.link_latency_seconds())
                               : 0;
  return layout.micro_batches() * (static_cast<double>(stage.layers) * layer + transfers);
}

double TimeEstimator::GradientSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                      const v1::HardwareProfile& profile) const {
  const int64_t ranks = DataRanks(layout);
  if (ranks == 1) return 0;
  const double bytes = static_cast<double>(kF32Bytes * stage.parameters) / layout.tensor_parallel();
  const double gradients = layout.communication_dtype() == "bf16" ? bytes / 2 : bytes;
  const double passes = layout.micro_batches();
  const double one = RingSeconds(bytes, ranks, profile);
  const double reduce = RingSeconds(gradients, ranks, profile);
  // Without ZeRO an all-reduce; ZeRO-1 scatters once and gathers the new weights; 2 scatters the
  // gradients of each micro-batch; 3 also gathers the weights for each pass.
  if (layout.zero_stage() == 0) return 2 * reduce;
  if (layout.zero_stage() == 1) return reduce + one;
  return layout.zero_stage() == 2 ? passes * reduce + one : passes * (reduce + 2 * one);
}

// What the offload adds: the part of the pass's streams that is longer than the pass, and the
// slowest stream of the optimizer.
double TimeEstimator::OffloadSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                     double busy_seconds,
                                     const v1::HardwareProfile& profile) const {
  if (!layout.has_offload()) return 0;
  const v1::Offload& offload = layout.offload();
  const TierRates rates = TierRatesOf(profile);
  const double whole = static_cast<double>(kF32Bytes * stage.parameters) / layout.tensor_parallel();
  const double share = whole / static_cast<double>(ShardRanks(layout));
  const double weights = layout.zero_stage() == 0 ? whole : share;
  const double passes = layout.micro_batches();
  const double again = RecomputeOf(layout) == "none" ? 0 : 1;
  const double fetched = passes * (2 + again) * weights;
  const double left = layout.zero_stage() >= 2 ? passes * share : weights;
  const double kept = 2 * static_cast<double>(memory_.ActivationBytes(layout, stage)) * passes;
  const double in_pass = std::max(
      {(Away(offload.parameter()) * fetched + Away(offload.activation()) * kept) / rates.to_device,
       (Away(offload.gradient()) * left + Away(offload.activation()) * kept) / rates.to_host,
       (offload.parameter().nvme() * fetched + offload.activation().nvme() * kept) /
           rates.nvme_read,
       (offload.gradient().nvme() * left + offload.activation().nvme() * kept) / rates.nvme_write});
  // Weights that stay on the device come and go.
  const double visiting =
      std::max(0.0, Away(offload.optimizer()) - Away(offload.parameter())) * share;
  const double written =
      offload.parameter().nvme() * share + offload.optimizer().nvme() * 2 * share;
  const double updating = std::max({Away(offload.optimizer()) * 7 * share / rates.host_memory,
                                    visiting / rates.to_device, visiting / rates.to_host,
                                    (written + offload.gradient().nvme() * share) / rates.nvme_read,
                                    written / rates.nvme_write});
  return std::max(0.0, in_pass - busy_seconds) + updating;
}

double TimeEstimator::StepSeconds(const v1::Layout& layout,
                                  const v1::HardwareProfile& profile) const {
  double slowest = 0;
  for (const EstimatedStage& stage : model_.Stages(layout)) {
    const double busy =
        ComputeSeconds(layout, stage, profile) + LayerCommunicationSeconds(layout, stage, profile);
    const double on_device = 1 - Away(layout.offload().optimizer());
    const double optimizer = on_device * 7 * static_cast<double>(kF32Bytes * stage.parameters) /
                             layout.tensor_parallel() / static_cast<double>(ShardRanks(layout)) /
                             std::max(1.0, profile.memory_bytes_per_second());
    const double offload = OffloadSeconds(layout, stage, busy, profile);
    slowest = std::max(slowest, busy * (1 + Bubble(layout)) + optimizer + offload +
                                    GradientSeconds(layout, stage, profile));
  }
  return slowest;
}

}  // namespace terrace
