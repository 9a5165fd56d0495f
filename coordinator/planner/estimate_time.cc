// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_time.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/hardware/profiles.h"
#include "coordinator/layout/rules.h"
#include "coordinator/planner/estimate_layer_time.h"
#include "coordinator/simulator/link_time.h"

namespace terrace {
namespace {

// Of each pass's computation, what collectives can hide behind: the first gather and the last sum
// have nothing beside them.
constexpr double kHidingShare = 0.9;
// Of the step's last backward pass, the part beside which its gradients are summed.
constexpr double kBackwardShare = 2.0 / 3;

// What is off the device, and what is on NVMe, of a class.
double Away(const v1::TierShares& shares) { return shares.host() + shares.nvme(); }

// Of a layer's forward pass, what the backward pass does again; the mean of all layers.
double AgainSeconds(const v1::Layout& layout, const LayerTime& layer) {
  const auto of_kind = [&](std::string_view kind) {
    if (kind == "none" || kind.empty()) return 0.0;
    return kind == "selective" ? layer.light : layer.forward;
  };
  if (layout.recompute_layers().empty()) return of_kind(layout.recompute());
  double sum = 0;
  for (const std::string& kind : layout.recompute_layers()) sum += of_kind(kind);
  return sum / layout.recompute_layers_size();
}

// Bytes that passes in one direction move between tiers.
struct Moved {
  double come = 0, go = 0, read = 0, written = 0;  // to and from the device, from and to NVMe

  void Come(const v1::TierShares& away, double bytes) {
    come += Away(away) * bytes;
    read += away.nvme() * bytes;
  }
  void Go(const v1::TierShares& away, double bytes) {
    go += Away(away) * bytes;
    written += away.nvme() * bytes;
  }
  Moved operator+(const Moved& other) const {
    return {come + other.come, go + other.go, read + other.read, written + other.written};
  }
  // Both directions at once share the link and the host's memory.
  double Seconds(const TierRates& rates, double duplex_ratio) const {
    return std::max({(come + go) / (duplex_ratio * (rates.to_device + rates.to_host)),
                     come / rates.to_device, go / rates.to_host, read / rates.nvme_read,
                     written / rates.nvme_write});
  }
};

double Excess(double seconds, double beside) { return std::max(0.0, seconds - beside); }

double Count(int64_t count) { return static_cast<double>(std::max<int64_t>(1, count)); }

// On paper, links and engines of their own carry what is communicated; cores that also compute do
// not hide it.
bool Hides(const v1::HardwareProfile& profile) {
  return profile.links_size() > 0 && !profile.shared_cores();
}

}  // namespace

TimeEstimator::TimeEstimator(const EstimateModel& model, const v1::HardwareProfile& profile,
                             const EngineTraits& traits)
    : model_(model), memory_(model), profile_(profile), compute_(profile), traits_(traits) {}

double TimeEstimator::RingSeconds(double bytes, int64_t members, int64_t stride) const {
  const Spread spread = SpreadOf(static_cast<uint64_t>(members), static_cast<uint64_t>(stride),
                                 profile_.ranks_per_node());
  return CollectiveSeconds(v1::ALL_GATHER, bytes, spread, profile_);
}

double TimeEstimator::ExchangeSeconds(double bytes, int64_t members, int64_t stride) const {
  const Spread spread = SpreadOf(static_cast<uint64_t>(members), static_cast<uint64_t>(stride),
                                 profile_.ranks_per_node());
  return CollectiveSeconds(v1::ALL_TO_ALL, bytes, spread, profile_);
}

// Codes are exchanged layer by layer, each part with its rank; in two levels first those of a block
// of ranks, of which each then has its part of the sum.
double TimeEstimator::CodedSumSeconds(const v1::Layout& layout, double elements,
                                      double layers) const {
  const int64_t tp = layout.tensor_parallel(), shards = ShardRanks(layout);
  const auto exchange = [&](double all, int64_t members, int64_t stride) {
    return ExchangeSeconds(all, members, stride) + ExchangeSeconds(0, members, stride) * layers;
  };
  const double gradients = ReducedBytes(layout) * elements;
  if (layout.reduce_block() <= 1) return exchange(gradients, shards, tp);
  const int64_t near = int64_t{layout.reduce_block()} * layout.context_parallel();
  const double sums = BytesOfSums(layout) * elements / static_cast<double>(near);
  return exchange(gradients, near, tp) + exchange(sums, shards / near, tp * near);
}

// Of one micro-batch on one stage: two reduce-scatters and two all-gathers a layer in each
// direction, keys and values round the context ring, messages to the next stage and back.
double TimeEstimator::LayerCommunicationSeconds(const v1::Layout& layout,
                                                const EstimatedStage& stage,
                                                const LayerTime& layer) const {
  const int64_t tp = layout.tensor_parallel(), cp = layout.context_parallel();
  const double tokens =
      static_cast<double>(layout.micro_batch() * model_.sequence) / static_cast<double>(cp);
  const double row = tokens * static_cast<double>(model_.config.hidden * ElementBytes(layout));
  const double kv_row = row * static_cast<double>(model_.config.kv_heads) /
                        static_cast<double>(model_.config.heads) / static_cast<double>(tp);
  const bool again = RecomputeGroup(layout, stage.layers) > 0;
  const double back = stage.back_share();  // layers of one that goes back too
  double each = 0;
  if (tp > 1) each += (4 + back * (again ? 8 : 4)) * RingSeconds(row, tp, 1);
  if (cp > 1 && layout.context_type() == "ulysses") {
    each += (1 + back * (again ? 2 : 1)) *
            RingSeconds(2 * (row / static_cast<double>(tp) + kv_row), cp, tp);
  } else if (cp > 1) {
    // Once forward, beside the attention; back again with their gradients.
    const Spread spread = SpreadOf(cp, tp, profile_.ranks_per_node());
    const double round = static_cast<double>(cp - 1) *
                         CollectiveSeconds(v1::RING_SHIFT, 2 * kv_row, spread, profile_);
    const double hidden = Hides(profile_) ? 1 : 0;
    each += (1 + back * (again ? 1 : 0)) * std::max(0.0, round - hidden * layer.attention_forward) +
            back * std::max(0.0, 2 * round - hidden * layer.attention_backward);
  }
  if (layout.pipeline_parallel() == 1) return static_cast<double>(stage.layers) * each;
  const double message = row / (layout.sequence_parallel() ? static_cast<double>(tp) : 1);
  const int64_t stage_ranks = tp * cp * layout.data_parallel();
  const bool near = profile_.ranks_per_node() == 0 ||
                    stage_ranks * layout.pipeline_parallel() <= profile_.ranks_per_node();
  const double transfers =
      2 * Count(layout.interleave()) * TransferSeconds(message, near, profile_);
  return static_cast<double>(stage.layers) * each + transfers;
}

double TimeEstimator::ExposedSeconds(double seconds, double beside, double bytes) const {
  if (!Hides(profile_)) return seconds;
  // What is hidden still takes memory and multiprocessors from the computation.
  const double alone = profile_.links(0).bytes_per_second();
  const double contended = alone > 0 ? std::min(seconds, bytes / alone) : 0;
  return std::max(0.0, seconds - kHidingShare * beside) +
         profile_.communication_slowdown() * contended;
}

// What summing gradients and gathering weights adds to a step whose micro-batches take `busy`
// seconds each.
double TimeEstimator::GradientSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                      double busy) const {
  const int64_t ranks = DataRanks(layout);
  if (ranks == 1) return 0;
  const int64_t tp = layout.tensor_parallel();
  const double elements = static_cast<double>(stage.parameters) / static_cast<double>(tp);
  // Of what is updated as wholes every rank may keep some, and get the padding of others.
  const auto kept = static_cast<double>(stage.kept);
  const double trained = static_cast<double>(stage.trained) / static_cast<double>(tp) - kept +
                         static_cast<double>(stage.empty);
  // ZeRO-3 gathers what is frozen as well.
  const double element_bytes = std::min(traits_.gathered_element_bytes, GatheredBytes(layout));
  const double coded = static_cast<double>(stage.coded) / static_cast<double>(tp);
  const double codes =
      stage.coded == 0 ? 0 : coded * (FrozenBytes(layout, model_.config) - element_bytes);
  const double weights =
      layout.zero_stage() == 3 ? element_bytes * elements + codes : element_bytes * trained;
  const double gradients = ReducedBytes(layout) * trained;
  const int64_t shards = ShardRanks(layout) > 1 ? ShardRanks(layout) : ranks;
  // With ZeRO layer by layer, each with the latency of its ring.
  const double latency =
      layout.zero_stage() == 0 ? 0 : RingSeconds(0, shards, tp) * Count(stage.layers);
  const double gather = RingSeconds(weights, shards, tp) + latency;
  double reduce = ReduceCodes(layout) == nullptr
                      ? RingSeconds(gradients, shards, tp) + latency
                      : CodedSumSeconds(layout, trained, Count(stage.layers));
  if (shards < ranks) {
    const double stored = static_cast<double>(GradientBytes(layout)) * trained;
    reduce += 2 * RingSeconds(stored / static_cast<double>(shards), ranks / shards, tp * shards);
  }
  if (kept > 0) reduce += 2 * RingSeconds(ReducedBytes(layout) * kept, ranks, tp);
  const auto exposed = [this](double seconds, double beside, double bytes) {
    return ExposedSeconds(seconds, beside, bytes);
  };
  // Without ZeRO an all-reduce; ZeRO-1 scatters once and gathers the new weights, which nothing
  // hides; 2 scatters the gradients of each micro-batch; 3 also gathers the weights for each pass.
  const auto passes = static_cast<double>(RunsOf(layout));
  busy *= layout.micro_batches() / passes;
  const double last = kBackwardShare * busy;
  if (layout.zero_stage() == 0) return exposed(2 * reduce, last, 2 * gradients);
  // Others hide it behind the next step's first pass.
  const double renewed = traits_.renews_beside_next_step ? exposed(gather, last, weights) : gather;
  if (layout.zero_stage() == 1) return exposed(reduce, last, gradients) + renewed;
  if (layout.zero_stage() == 2) {
    return passes * exposed(reduce, kBackwardShare * busy, gradients) + renewed;
  }
  const double first = (reduce + 2 * gather) / Count(stage.layers);
  return passes * (exposed(reduce + 2 * gather, busy, gradients + 2 * weights) +
                   (Hides(profile_) ? first : 0));
}

// What the offload adds: the part of the passes' streams that is longer than the passes, and the
// slowest stream of the optimizer.
double TimeEstimator::OffloadSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                     const Busy& busy) const {
  if (!layout.has_offload()) return 0;
  const v1::Offload& offload = layout.offload();
  const TierRates rates = TierRatesOf(profile_);
  const double whole = static_cast<double>(kF32Bytes * stage.parameters) / layout.tensor_parallel();
  const double share = whole / static_cast<double>(ShardRanks(layout));
  const double coded = stage.coded_share();
  const double travels = 1 - coded + coded * CodedShareOfWeights(layout, model_.config);
  const double weights = travels * WeightShare(layout) * (layout.zero_stage() == 0 ? whole : share);
  const double trains = stage.trained_share();
  const double passes = layout.micro_batches(), runs = static_cast<double>(RunsOf(layout));
  // A layer recomputed is there until its backward pass, unless it comes in tiles or others are
  // computed between.
  const bool passes_by = TileBytes(layout) > 0 ? RecomputeOf(layout) != "none"
                                               : RecomputeGroup(layout, stage.layers) > 1;
  const double again = passes_by && !InRuns(layout.schedule()) ? 1 : 0;
  // Sums come back to be added to.
  const double gradients = trains * GradientShare(layout) * share;
  const double sums = layout.zero_stage() == 0 ? trains * GradientShare(layout) * whole : gradients;
  const double left = layout.zero_stage() == 1 ? gradients : runs * sums;
  const double returned = layout.zero_stage() == 1 ? 0 : (runs - 1) * sums;
  // Of each pass over each chunk, once there and once back.
  const double kept = static_cast<double>(memory_.OffloadedBytes(layout, stage)) * passes *
                      layout.interleave() / Count(MemoryEstimator::PassesHeld(layout, stage.index));
  Moved forward, backward;
  forward.Come(offload.parameter(), runs * weights);
  forward.Go(offload.activation(), kept);
  backward.Come(offload.parameter(), runs * (1 + again) * weights);
  // Where no gradient waits the host takes each one from the device, and none is stored.
  const bool none_waits = model_.NoGradientWaits(layout);
  if (none_waits) {
    backward.go += Away(offload.optimizer()) * left;
  } else {
    backward.Come(offload.gradient(), returned);
    backward.Go(offload.gradient(), left);
  }
  backward.Come(offload.activation(), kept);
  const double ratio = profile_.copy_duplex_ratio() > 0 ? profile_.copy_duplex_ratio() : 1;
  // In a full pipeline passes forward and backward take turns, of micro-batches that are held.
  const bool turns = layout.pipeline_parallel() > 1 && !ForwardFirst(layout.schedule());
  const double exposed =
      turns ? Excess((forward + backward).Seconds(rates, ratio), busy.forward + busy.backward)
            : Excess(forward.Seconds(rates, ratio), busy.forward) +
                  Excess(backward.Seconds(rates, ratio), busy.backward);
  // Weights that stay on the device come and go, or come rounded.
  const bool rounds = RoundsWeights(layout);
  const double stay =
      std::max(0.0, Away(offload.optimizer()) - Away(offload.parameter())) * trains * share;
  const double come = stay * WeightShare(layout), go = rounds ? 0 : stay * MasterShare(layout);
  const v1::TierShares& masters =
      MastersRestWithMoments(layout) ? offload.optimizer() : offload.parameter();
  const double written = trains * share *
                         (masters.nvme() * MasterShare(layout) +
                          offload.optimizer().nvme() * stage.moments_each() * CodeShare(layout));
  const double rounded =
      rounds ? offload.parameter().nvme() * WeightShare(layout) * trains * share : 0;
  const double stored = none_waits ? 0 : offload.gradient().nvme() * gradients;
  const double updating = std::max(
      {Away(offload.optimizer()) * Updated(layout, stage) * trains * share / rates.host_memory,
       come / rates.to_device, go / rates.to_host, (written + stored) / rates.nvme_read,
       (written + rounded) / rates.nvme_write});
  // Updates that come at once take place beside the last backward pass over each chunk.
  const double beside = model_.AtOnce(layout) ? busy.backward * runs / std::max(1.0, passes) : 0;
  return exposed + Excess(updating, beside);
}

double TimeEstimator::StageSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                   const PassTime& pass) const {
  const LayerTime& layer = pass.layer;
  const double passes = layout.micro_batches();
  const double memory = std::max(1.0, profile_.memory_bytes_per_second());
  const double bytes = static_cast<double>(kF32Bytes * stage.parameters) / layout.tensor_parallel();
  const double again = AgainSeconds(layout, layer);
  const double layers = static_cast<double>(stage.layers);
  const double back_layers = static_cast<double>(stage.back_layers);
  // Of the head's three products two are backward, one of them the weight's gradient.
  const double head = !stage.head ? 0 : stage.head_trained ? pass.head : pass.head * 2 / 3;
  const double trained =
      EstimatedStage::Share(stage.layers_trained, stage.back_layers * model_.layer_parameters);
  const double frozen_products = (1 - trained) * layer.weights;
  // Each micro-batch reads the weights and adds to all gradients.
  const double computed = layers * layer.forward +
                          back_layers * (layer.backward - frozen_products + again) + head +
                          (memory_.EncodedTraffic(layout, stage) +
                           (DecodedTraffic(layout) + FrozenTraffic(layout, model_.config, stage) +
                            stage.trained_share() * ReducedTraffic(layout)) *
                               bytes / kF32Bytes) /
                              memory;
  const double one = computed + WeightTraffic(layout, profile_) * bytes / memory +
                     LayerCommunicationSeconds(layout, stage, layer);
  const double forward =
      passes * one * (layers * layer.forward + (stage.head ? pass.head / 3 : 0)) / computed;
  const double on_device = 1 - Away(layout.offload().optimizer());
  const auto kept = static_cast<double>(kF32Bytes * stage.kept);
  const double shared =
      stage.trained_share() * bytes - kept + static_cast<double>(kF32Bytes * stage.empty);
  const double optimizer = on_device * Updated(layout, stage) *
                           (shared / static_cast<double>(ShardRanks(layout)) + kept) / memory;
  const bool exact = layout.precision() == "fp32" || layout.precision() == "tf32";
  const double products =
      exact ? profile_.f32_flops_per_second()
            : std::max(profile_.f32_flops_per_second(), profile_.bf16_flops_per_second());
  const double iterations =
      static_cast<double>(stage.updated_layers) * model_.update_flops / std::max(1.0, products);
  return passes * one * (1 + Bubble(layout)) + optimizer + iterations +
         OffloadSeconds(layout, stage, {.forward = forward, .backward = passes * one - forward}) +
         GradientSeconds(layout, stage, one);
}

PassTime TimeEstimator::TimeOfPass(const v1::Layout& layout) const {
  return {.layer = TimeOfLayer(model_, layout, compute_, profile_),
          .head = HeadSeconds(model_, layout, compute_, profile_)};
}

double TimeEstimator::StepSeconds(const v1::Layout& layout, const PassTime& pass) const {
  double slowest = 0;
  const EstimatedStage* last = nullptr;
  const std::vector<EstimatedStage> stages = model_.Stages(layout);
  for (const EstimatedStage& stage : stages) {
    // Most stages of a deep pipeline are alike; what is offloaded also depends on their place.
    const bool alike = last != nullptr && !layout.has_offload() && last->layers == stage.layers &&
                       last->parameters == stage.parameters && last->trained == stage.trained &&
                       last->back_layers == stage.back_layers && last->head == stage.head;
    if (!alike) slowest = std::max(slowest, StageSeconds(layout, stage, pass));
    last = &stage;
  }
  return slowest;
}

}  // namespace terrace
