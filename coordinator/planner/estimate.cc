// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/planner/layout_rules.h"
#include "coordinator/planner/profiles.h"

namespace terrace {
namespace {

constexpr int64_t kF32Bytes = 4;

int64_t ElementBytes(const v1::Layout& layout) {
  return layout.precision() == "bf16" ? 2 : kF32Bytes;
}

// Ranks that share the states with ZeRO, and those whose gradients are summed.
int64_t ShardRanks(const v1::Layout& layout) {
  if (layout.zero_stage() == 0) return 1;
  const int64_t shard = layout.shard_size() > 0 ? layout.shard_size() : layout.data_parallel();
  return shard * layout.context_parallel();
}
int64_t DataRanks(const v1::Layout& layout) {
  return int64_t{layout.data_parallel()} * layout.context_parallel();
}

// Model chunks whose activations a stage holds at once.
int64_t ChunksInFlight(const v1::Layout& layout, int64_t stage) {
  const int64_t stages = layout.pipeline_parallel();
  const int64_t chunks = layout.interleave();
  const int64_t all = layout.micro_batches() * chunks;
  if (layout.schedule() == "gpipe") return all;
  if (layout.schedule() == "zbv") return std::min(all, 2 * stages);
  if (layout.schedule() == "interleaved") {
    return std::min(all, 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1);
  }
  return std::min(all, stages - stage);
}

// Idle over busy time.
double Bubble(const v1::Layout& layout) {
  const double share =
      (layout.pipeline_parallel() - 1.0) / std::max<double>(1, layout.micro_batches());
  if (layout.schedule() == "interleaved") return share / layout.interleave();
  if (layout.schedule() == "zb-h1") return share / 3;
  if (layout.schedule() == "zbv") return 0;
  return share;
}

// The recompute of most layers stands for all.
std::string_view RecomputeOf(const v1::Layout& layout) {
  const auto& layers = layout.recompute_layers();
  if (layers.empty()) return layout.recompute();
  std::string_view most = "none";
  int64_t count = 0;
  for (const std::string_view kind : {"none", "selective", "block"}) {
    const int64_t of_kind = std::count(layers.begin(), layers.end(), kind);
    if (of_kind > count) most = kind;
    count = std::max(count, of_kind);
  }
  return most;
}

// Layers between two activations that are kept; 0: every activation of a layer is.
int64_t RecomputeGroup(const v1::Layout& layout, int64_t layers) {
  const std::string_view recompute = RecomputeOf(layout);
  if (recompute == "block") return 1;
  if (recompute == "every") return std::min<int64_t>(layers, layout.recompute_every());
  if (recompute == "sqrt") return std::lround(std::sqrt(static_cast<double>(layers)));
  return recompute == "full" ? layers : 0;
}

int64_t Part(double share, int64_t bytes) {
  return static_cast<int64_t>(share * static_cast<double>(bytes));
}

// What is off the device, and what is on NVMe, of a class.
double Away(const v1::TierShares& shares) { return shares.host() + shares.nvme(); }

double RingSeconds(double bytes, int64_t ranks, const v1::HardwareProfile& profile) {
  const double rounds = static_cast<double>(ranks - 1);
  return rounds / static_cast<double>(ranks) * bytes /
             std::max(1.0, profile.link_bytes_per_second()) +
         rounds * profile.link_latency_seconds();
}

}  // namespace

Estimator::Estimator(const v1::JobSpec& spec, const Model& model)
    : config_(model.config),
      sequence_(spec.data().sequence_length()),
      flops_per_token_(FlopsPerToken(model, sequence_)) {
  for (const Tensor& tensor : model.tensors) {
    int64_t* sum = &layer_parameters_;
    if (tensor.layer < 0) {
      const bool embeds = tensor.role == TensorRole::kTokenEmbedding ||
                          tensor.role == TensorRole::kPositionEmbedding;
      sum = embeds ? &embedding_parameters_ : &head_parameters_;
    }
    *sum += tensor.elements();
  }
  layer_parameters_ /= std::max<int64_t>(1, config_.layers);
}

std::vector<Estimator::Stage> Estimator::Stages(const v1::Layout& layout) const {
  const int64_t count = layout.pipeline_parallel();
  std::vector<Stage> stages(count);
  const std::vector<int64_t> chunks = ChunkLayers(layout, config_.layers);
  int64_t last = count - 1;  // the stage of the last chunk
  if (layout.schedule() == "zbv") last = 0;
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(chunks.size()); ++chunk) {
    // zbv goes down the stages and up again, the others go round.
    const bool up = layout.schedule() == "zbv" && chunk >= count;
    stages[up ? 2 * count - 1 - chunk : chunk % count].layers += chunks[chunk];
  }
  const double head_flops = 6.0 * static_cast<double>(config_.hidden * config_.vocabulary);
  const double layer_flops =
      (flops_per_token_ - head_flops) / static_cast<double>(std::max<int64_t>(1, config_.layers));
  for (int64_t i = 0; i < count; ++i) {
    Stage& stage = stages[i];
    stage.index = i;
    stage.parameters = stage.layers * layer_parameters_;
    stage.flops_per_token = static_cast<double>(stage.layers) * layer_flops;
    if (i == 0) stage.parameters += embedding_parameters_;
    if (i != last) continue;
    stage.flops_per_token += head_flops;
    stage.parameters += head_parameters_;
    if (config_.tied_embeddings && i != 0) stage.parameters += embedding_parameters_;
  }
  return stages;
}

// Activation bytes that one token leaves in one layer for the backward pass: both norms, q k v, the
// attention's result, both residual sums and the MLP's inner values. What tensor-parallel ranks do
// not share they all hold.
int64_t Estimator::LayerTokenBytes(const v1::Layout& layout) const {
  const int64_t tp = layout.tensor_parallel();
  const bool selective = RecomputeOf(layout) == "selective";
  const int64_t kv_heads = std::max(config_.kv_heads, std::min(tp, config_.heads));
  const int64_t qkv = (config_.heads + 2 * kv_heads) * config_.head_dim;
  const int64_t qk_norm =
      config_.qk_norm ? (config_.heads + kv_heads) * config_.head_dim : int64_t{0};
  const int64_t inner = (config_.mlp == MlpKind::kSwiglu ? 3 : 2) - (selective ? 1 : 0);
  const int64_t shared =
      qkv + qk_norm + config_.heads * config_.head_dim + inner * config_.intermediate;
  const int64_t whole = (selective ? 2 : 4) * config_.hidden;
  // Statistics of the norms and the attention stay f32.
  return (shared / tp + whole / (layout.sequence_parallel() ? tp : 1)) * ElementBytes(layout) +
         (config_.heads / tp + 4) * kF32Bytes;
}

int64_t Estimator::ActivationBytes(const v1::Layout& layout, const Stage& stage) const {
  const int64_t tokens = int64_t{layout.micro_batch()} * sequence_ / layout.context_parallel();
  const int64_t boundary = config_.hidden * ElementBytes(layout) /
                           (layout.sequence_parallel() ? layout.tensor_parallel() : 1);
  const int64_t chunk_layers = std::max<int64_t>(1, stage.layers / layout.interleave());
  const int64_t group = RecomputeGroup(layout, chunk_layers);
  const int64_t chunk_bytes = group == 0 ? chunk_layers * LayerTokenBytes(layout)
                                         : (chunk_layers + group - 1) / group * boundary;
  return tokens * (ChunksInFlight(layout, stage.index) * chunk_bytes +
                   group * LayerTokenBytes(layout) + 3 * boundary);
}

MemoryEstimate Estimator::StageMemory(const v1::Layout& layout, const Stage& stage) const {
  const uint32_t zero = layout.zero_stage();
  const int64_t shards = ShardRanks(layout);
  const int64_t whole = kF32Bytes * stage.parameters / layout.tensor_parallel();
  // What ZeRO gathers or has not scattered yet.
  const int64_t passing =
      kF32Bytes * std::max(2 * layer_parameters_, embedding_parameters_) / layout.tensor_parallel();
  MemoryEstimate memory;
  memory.state_bytes = zero == 0 ? 3 * whole : 3 * whole / shards;
  if (zero == 1 || zero == 2) memory.state_bytes += whole;
  if (zero == 3) memory.state_bytes += std::min(whole, passing);
  memory.gradient_bytes = whole;
  if (zero >= 2) memory.gradient_bytes = std::min(whole, whole / shards + passing);
  memory.activation_bytes = ActivationBytes(layout, stage);
  if (layout.has_offload()) Offload(layout, stage, &memory);
  return memory;
}

void Estimator::Offload(const v1::Layout& layout, const Stage& stage,
                        MemoryEstimate* memory) const {
  constexpr int64_t kRingBuffers = 4;  // of each operand of the optimizer (compiler/staging.h)
  const v1::Offload& offload = layout.offload();
  const int64_t whole = kF32Bytes * stage.parameters / layout.tensor_parallel();
  const int64_t share = whole / ShardRanks(layout);
  const int64_t passing =
      kF32Bytes * std::max(2 * layer_parameters_, embedding_parameters_) / layout.tensor_parallel();
  const auto away = [memory](int64_t bytes, const v1::TierShares& shares) {
    memory->host_bytes += Part(shares.host(), bytes);
    memory->nvme_bytes += Part(shares.nvme(), bytes);
    return Part(shares.host() + shares.nvme(), bytes);
  };
  memory->state_bytes -= away(2 * share, offload.optimizer());
  // With ZeRO 1 and 2 whole weights stay on the device, and the masters rest with the moments.
  if (layout.zero_stage() == 1 || layout.zero_stage() == 2) {
    memory->state_bytes -= away(share, offload.optimizer());
  } else {
    const int64_t weights = away(share, offload.parameter());
    const int64_t there_anyway = layout.zero_stage() == 3 ? std::min(whole, passing) : 0;
    memory->state_bytes -=
        weights - std::max<int64_t>(0, std::min(weights, passing) - there_anyway);
  }
  const int64_t gradients = away(layout.zero_stage() == 0 ? whole : share, offload.gradient());
  memory->gradient_bytes -= gradients - std::min(gradients, passing);
  const int64_t kept = away(memory->activation_bytes, offload.activation());
  memory->activation_bytes -= kept - std::min(kept, 3 * kept / std::max<int64_t>(3, stage.layers));
  memory->host_bytes += kRingBuffers * 4 * layout.chunk_bytes();
}

MemoryEstimate Estimator::Memory(const v1::Layout& layout) const {
  MemoryEstimate most;
  for (const Stage& stage : Stages(layout)) {
    const MemoryEstimate memory = StageMemory(layout, stage);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

double Estimator::ComputeSeconds(const v1::Layout& layout, const Stage& stage,
                                 const v1::HardwareProfile& profile) const {
  // An ordinary layer and its backward pass.
  constexpr double kInstructionsPerLayer = 24;
  constexpr double kSelectiveShare = 0.1;  // of a forward pass
  const double micro_batches = layout.micro_batches();
  const double tokens = micro_batches * layout.micro_batch() * static_cast<double>(sequence_) /
                        layout.context_parallel();
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

double Estimator::LayerCommunicationSeconds(const v1::Layout& layout, const Stage& stage,
                                            const v1::HardwareProfile& profile) const {
  const int64_t tp = layout.tensor_parallel(), cp = layout.context_parallel();
  const double tokens =
      static_cast<double>(layout.micro_batch() * sequence_) / static_cast<double>(cp);
  const double row = tokens * static_cast<double>(config_.hidden * ElementBytes(layout));
  const double kv_row = row * static_cast<double>(config_.kv_heads) /
                        static_cast<double>(config_.heads) / static_cast<double>(tp);
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

double Estimator::GradientSeconds(const v1::Layout& layout, const Stage& stage,
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
double Estimator::OffloadSeconds(const v1::Layout& layout, const Stage& stage, double busy_seconds,
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
  const double kept = 2 * static_cast<double>(ActivationBytes(layout, stage)) * passes;
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

double Estimator::StepSeconds(const v1::Layout& layout, const v1::HardwareProfile& profile) const {
  double slowest = 0;
  for (const Stage& stage : Stages(layout)) {
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
