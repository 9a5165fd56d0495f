// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_memory.h"

#include <algorithm>

#include "coordinator/layout/rules.h"
#include "coordinator/planner/estimate_work.h"

namespace terrace {
namespace {

RecomputeCounts CountsOf(const v1::Layout& layout, int64_t layers, int64_t stage) {
  RecomputeCounts counts = {};
  int layer = 0;
  const std::vector<int64_t> chunks = ChunkLayers(layout, layers);
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(chunks.size()); ++chunk) {
    const bool here = StageOfChunk(layout, chunk) == stage;
    for (const int end = layer + static_cast<int>(chunks[chunk]); layer < end; ++layer) {
      const std::string& recompute = layout.recompute_layers(layer);
      if (here) ++counts[recompute == "none" ? 0 : recompute == "selective" ? 1 : 2];
    }
  }
  return counts;
}

}  // namespace

// Both norms, q k v, what A of adapters gives and what it reads with elements dropped, the
// attention's result, both residual sums and the
// MLP's inner values; of the sums of a block's parts and of what comes in, each rank has its tokens
// only with sequence_parallel.
LayerBytes MemoryEstimator::BytesOfLayer(const v1::Layout& layout, double element_bytes) const {
  const ModelConfig& config = model_.config;
  const int64_t tp = layout.tensor_parallel();
  const int64_t sp = layout.sequence_parallel() ? tp : 1;
  const int64_t kv_heads = std::max(config.kv_heads, std::min(tp, config.heads));
  const int64_t kv = kv_heads * config.head_dim, attention = config.heads * config.head_dim;
  const int64_t inner = (config.mlp == MlpKind::kGated ? 3 : 2) * config.intermediate;
  // q and k beside what their product gave.
  const int64_t qk_norm = config.qk_norm || config.interleaved_rope ? attention + kv : 0;
  const int64_t before = config.shared_norm ? 1 : 2;
  int64_t whole = before * config.hidden + 2 * config.hidden / sp;
  // The norms behind the blocks read these.
  if (config.norm_before && config.norm_after) whole += 2 * config.hidden / sp;
  int64_t elements = (2 * attention + 2 * kv + qk_norm + inner) / tp + whole + model_.adapter_ranks;
  if (layout.context_parallel() > 1) {
    elements += (layout.context_type() == "ulysses" ? attention : 2 * kv) / tp;
  }
  // Statistics of the norms and the attention stay f32.
  const int64_t statistics = kF32Bytes * (config.heads / tp + std::max<int64_t>(1, 2 / sp));
  // Nobody keeps what a norm gives after a block.
  const int64_t norms = config.norm_before ? before * config.hidden : 0;
  const int64_t again = norms + config.intermediate / tp;
  const int64_t dropped = model_.dropped_attention / tp;
  const int64_t tokens = TokensOf(layout, model_.sequence);
  const auto of = [&](int64_t kept) { return Part(element_bytes, kept * tokens); };
  return {.none = of(elements + dropped) + statistics * tokens,
          .selective = of(elements - again) + statistics * tokens,
          .block = of(config.hidden / sp)};
}

LayerBytes MemoryEstimator::BytesOfLayer(const v1::Layout& layout) const {
  return BytesOfLayer(layout, static_cast<double>(ElementBytes(layout)));
}

int64_t MemoryEstimator::PassesHeld(const v1::Layout& layout, int64_t stage) {
  const int64_t stages = layout.pipeline_parallel();
  const int64_t chunks = layout.interleave();
  const int64_t all = layout.micro_batches() * chunks;
  if (ForwardFirst(layout.schedule())) return all;
  if (layout.schedule() == "zbv") return std::min(all, 2 * stages);
  if (layout.schedule() == "interleaved") {
    return std::min(all, 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1);
  }
  if (layout.schedule() == "zb-h1") return std::min(all, stages);
  return std::min(all, stages - stage);
}

HeldActivations MemoryEstimator::ActivationsOf(const v1::Layout& layout,
                                               const EstimatedStage& stage,
                                               const RecomputeCounts* counts) const {
  const LayerBytes bytes = BytesOfLayer(layout);
  const LayerBytes waiting = BytesOfLayer(layout, WaitingBytes(layout));
  const int64_t chunks = layout.interleave();
  const int64_t of_chunk = std::max<int64_t>(1, stage.layers / chunks);
  HeldActivations activations = {.whole = bytes.none, .passes = PassesHeld(layout, stage.index)};
  RecomputeCounts listed = {stage.layers, 0, 0};
  const int64_t group = RecomputeGroup(layout, of_chunk);
  const bool groups = counts == nullptr && layout.recompute_layers().empty() && group > 1;
  if (counts != nullptr) {
    listed = *counts;
  } else if (!layout.recompute_layers().empty()) {
    listed = CountsOf(layout, model_.config.layers, stage.index);
  } else if (layout.recompute() == "selective") {
    listed = {0, stage.layers, 0};
  } else if (group == 1) {
    listed = {0, 0, stage.layers};
  }
  int64_t of_stage =
      listed[0] * waiting.none + listed[1] * waiting.selective + listed[2] * waiting.block;
  if (listed[1] > 0) activations.again = bytes.none - bytes.selective;
  if (listed[2] > 0) activations.again = bytes.none;
  if (groups) {
    of_stage = chunks * ((of_chunk + group - 1) / group) * waiting.block;
    activations.again = group * bytes.none;
  }
  of_stage = Part(stage.back_share(), of_stage);
  if (stage.back_layers == 0) activations.again = 0;
  // A layer's backward pass finds its activations decoded.
  if (ActivationFormat(layout) != nullptr)
    activations.again = std::max(activations.again, bytes.none);
  const int64_t layers = std::max<int64_t>(1, stage.layers);
  const int64_t put_off = PutOffBytes(layout);
  for (const HeldLayers& held : stage.held) {
    activations.kept =
        std::max(activations.kept, of_stage * held.kept / layers + put_off * held.put_off);
  }
  activations.one_pass = of_stage / chunks;
  activations.one_layer = std::max(of_stage / layers, SplitsBackward(layout) ? put_off : 0);
  // Each chunk's input comes from another stage, but for the model's first.
  const double received = layout.pipeline_parallel() == 1 ? 0
                          : stage.index == 0              ? static_cast<double>(chunks - 1)
                                                          : static_cast<double>(chunks);
  const double of_one = static_cast<double>(std::max<int64_t>(1, of_stage));
  activations.stays = std::min(1.0, received * static_cast<double>(waiting.block) / of_one);
  return activations;
}

int64_t MemoryEstimator::OffloadedBytes(const v1::Layout& layout,
                                        const EstimatedStage& stage) const {
  const HeldActivations activations = ActivationsOf(layout, stage, nullptr);
  const int64_t of_pass = layout.schedule() == "zb-h1"
                              ? stage.layers * BytesOfLayer(layout, WaitingBytes(layout)).none
                              : activations.one_pass;
  return activations.passes * (of_pass - Part(activations.stays, of_pass));
}

double MemoryEstimator::EncodedTraffic(const v1::Layout& layout,
                                       const EstimatedStage& stage) const {
  if (ActivationFormat(layout) == nullptr) return 0;
  // Read and written as codes, and the other way.
  const double waiting = static_cast<double>(ActivationsOf(layout, stage, nullptr).one_pass) *
                         static_cast<double>(layout.interleave());
  // A split backward pass decodes activations once more for the gradients of weights.
  const double times = SplitsBackward(layout) ? 3 : 2;
  return times * waiting * (1 + static_cast<double>(ElementBytes(layout)) / WaitingBytes(layout));
}

// Inputs of the products and gradients of their results; of sums of a block's parts all tokens.
int64_t MemoryEstimator::PutOffBytes(const v1::Layout& layout) const {
  const ModelConfig& config = model_.config;
  const int64_t tp = layout.tensor_parallel();
  const int64_t kv = std::max(config.kv_heads, std::min(tp, config.heads)) * config.head_dim;
  const int64_t attention = config.heads * config.head_dim;
  const int64_t inner = (config.mlp == MlpKind::kGated ? 3 : 2) * config.intermediate;
  return TokensOf(layout, model_.sequence) * ElementBytes(layout) *
         ((2 * attention + 2 * kv + inner) / tp + 4 * config.hidden);
}

MemoryEstimate MemoryEstimator::StageMemory(const v1::Layout& layout, const EstimatedStage& stage,
                                            const RecomputeCounts* counts) const {
  const HeldActivations kept = ActivationsOf(layout, stage, counts);
  MemoryEstimate memory = LargestMoment(model_, layout, stage, kept);
  if (layout.has_offload()) AddOtherTiers(layout, stage, kept, &memory);
  return memory;
}

// A ring for each operand that the host updates and that does not rest there, one for what comes
// from NVMe and one for what goes there.
MemoryEstimator::Staging MemoryEstimator::StagingBytes(const v1::Layout& layout,
                                                       const EstimatedStage& stage,
                                                       int64_t share) const {
  constexpr int64_t kRingBuffers = 4;
  const v1::Offload& offload = layout.offload();
  const auto on_nvme = [](const v1::TierShares& shares) { return shares.nvme() > 0; };
  const auto partly = [](const v1::TierShares& shares) { return shares.host() < 1; };
  const bool updates = offload.optimizer().host() + offload.optimizer().nvme() > 0;
  const v1::TierShares& weights =
      MastersRestWithMoments(layout) ? offload.optimizer() : offload.parameter();
  const int64_t passing = (on_nvme(offload.parameter()) || on_nvme(offload.activation()) ? 1 : 0) +
                          (on_nvme(offload.gradient()) || on_nvme(offload.activation()) ? 1 : 0);
  const bool comes = partly(offload.gradient()) || model_.AtOnce(layout);
  const int64_t rings = (updates && partly(weights) ? 1 : 0) + passing;
  // A piece is of one parameter, with ZeRO of a layer's or a table's shard.
  const ModelConfig& config = model_.config;
  const int64_t of_layer =
      layout.zero_stage() > 0
          ? model_.layer_parameters
          : config.hidden * std::max((config.mlp == MlpKind::kGated ? 2 : 1) * config.intermediate,
                                     (config.heads + 2 * config.kv_heads) * config.head_dim);
  const int64_t largest = kF32Bytes * std::max(of_layer, config.vocabulary * config.hidden) /
                          layout.tensor_parallel() / ShardRanks(layout);
  const int64_t ring = kRingBuffers * std::min({layout.chunk_bytes(), largest, share});
  // Without ZeRO the rings of the passes are in use until the step ends.
  const int64_t of_step = rings - (layout.zero_stage() > 0 ? passing : 0);
  const int64_t moments =
      on_nvme(offload.optimizer()) ? Part(stage.moments_each() * CodeShare(layout), ring) : 0;
  const bool rounds = updates && RoundsWeights(layout) && partly(offload.parameter());
  return {.of_passes = passing * ring,
          .of_step = of_step * ring + moments + (updates && comes ? InGradients(layout, ring) : 0) +
                     (rounds ? InWeights(layout, ring) : 0)};
}

void MemoryEstimator::AddOtherTiers(const v1::Layout& layout, const EstimatedStage& stage,
                                    const HeldActivations& kept, MemoryEstimate* memory) const {
  const v1::Offload& offload = layout.offload();
  const int64_t whole = kF32Bytes * stage.trained / layout.tensor_parallel();
  const int64_t share = whole / ShardRanks(layout);
  const int64_t all = kF32Bytes * stage.parameters / layout.tensor_parallel() / ShardRanks(layout);
  const auto add = [memory](int64_t bytes, const v1::TierShares& shares) {
    memory->host_bytes += Part(shares.host(), bytes);
    memory->nvme_bytes += Part(shares.nvme(), bytes);
  };
  const bool masters = MastersRestWithMoments(layout);
  // The scales of moments on NVMe are on the host.
  const double each = stage.moments_each();
  const int64_t codes = Part(each * CodeShare(layout), share);
  const int64_t scales = Part(each * MomentShare(layout, model_.config), share) - codes;
  add(codes, offload.optimizer());
  memory->host_bytes += Part(offload.optimizer().host() + offload.optimizer().nvme(), scales);
  add(InMasters(layout, share), masters ? offload.optimizer() : offload.parameter());
  if (RoundsWeights(layout)) {
    add(InRounded(layout, all), offload.parameter());
  } else if (!masters) {
    add(InMasters(layout, all - share), offload.parameter());
  }
  if (stage.coded > 0 && layout.zero_stage() % 3 == 0) {
    const int64_t coded =
        InWeights(layout, kF32Bytes * stage.coded / layout.tensor_parallel()) / ShardRanks(layout);
    add(-Part(1 - CodedShareOfWeights(layout, model_.config), coded), offload.parameter());
  }
  // With ZeRO 1 shards are made when the last pass ends. Without ZeRO a tied table waits for its
  // second use.
  const bool none_rests =
      model_.NoGradientWaits(layout) || (model_.AtOnce(layout) && layout.zero_stage() == 1);
  const bool tied = model_.config.tied_embeddings && (stage.index == 0 || stage.head);
  if (!none_rests) {
    add(InGradients(layout, layout.zero_stage() == 0 ? whole : share), offload.gradient());
  } else if (tied && layout.zero_stage() == 0) {
    const int64_t table = kF32Bytes * model_.config.vocabulary * model_.config.hidden;
    add(InGradients(layout, table / layout.tensor_parallel()), offload.gradient());
  }
  // The optimizer's rings are used when no activations are held.
  const Staging staging = StagingBytes(layout, stage, share);
  const int64_t offloaded = kept.kept - Part(kept.stays, kept.kept);
  memory->nvme_bytes += Part(offload.activation().nvme(), offloaded);
  memory->host_bytes +=
      std::max(Part(offload.activation().host(), offloaded) + staging.of_passes, staging.of_step);
}

std::vector<MemoryEstimate> MemoryEstimator::Stages(const v1::Layout& layout) const {
  std::vector<MemoryEstimate> all;
  for (const EstimatedStage& stage : model_.Stages(layout)) {
    all.push_back(StageMemory(layout, stage));
  }
  return all;
}

MemoryEstimate MemoryEstimator::Memory(const v1::Layout& layout) const {
  MemoryEstimate most;
  int64_t host = 0, nvme = 0;
  for (const MemoryEstimate& memory : Stages(layout)) {
    host = std::max(host, memory.host_bytes);
    nvme = std::max(nvme, memory.nvme_bytes);
    if (memory.total() > most.total()) most = memory;
  }
  most.host_bytes = host;
  most.nvme_bytes = nvme;
  return most;
}

}  // namespace terrace
