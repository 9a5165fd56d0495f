// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/planner/layout_rules.h"

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
  return memory;
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

double Estimator::StepSeconds(const v1::Layout& layout, const v1::HardwareProfile& profile) const {
  double slowest = 0;
  for (const Stage& stage : Stages(layout)) {
    const double busy =
        ComputeSeconds(layout, stage, profile) + LayerCommunicationSeconds(layout, stage, profile);
    const double optimizer = 7 * static_cast<double>(kF32Bytes * stage.parameters) /
                             layout.tensor_parallel() / static_cast<double>(ShardRanks(layout)) /
                             std::max(1.0, profile.memory_bytes_per_second());
    slowest = std::max(
        slowest, busy * (1 + Bubble(layout)) + optimizer + GradientSeconds(layout, stage, profile));
  }
  return slowest;
}

}  // namespace terrace
