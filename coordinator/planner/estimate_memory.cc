// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_memory.h"

#include <algorithm>

namespace terrace {
namespace {

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

int64_t Part(double share, int64_t bytes) {
  return static_cast<int64_t>(share * static_cast<double>(bytes));
}

}  // namespace

// Activation bytes that one token leaves in one layer for the backward pass: both norms, q k v, the
// attention's result, both residual sums and the MLP's inner values. What tensor-parallel ranks do
// not share they all hold.
int64_t MemoryEstimator::LayerTokenBytes(const v1::Layout& layout) const {
  const int64_t tp = layout.tensor_parallel();
  const bool selective = RecomputeOf(layout) == "selective";
  const int64_t kv_heads = std::max(model_.config.kv_heads, std::min(tp, model_.config.heads));
  const int64_t qkv = (model_.config.heads + 2 * kv_heads) * model_.config.head_dim;
  const int64_t qk_norm = model_.config.qk_norm
                              ? (model_.config.heads + kv_heads) * model_.config.head_dim
                              : int64_t{0};
  const int64_t inner = (model_.config.mlp == MlpKind::kSwiglu ? 3 : 2) - (selective ? 1 : 0);
  const int64_t shared = qkv + qk_norm + model_.config.heads * model_.config.head_dim +
                         inner * model_.config.intermediate;
  const int64_t whole = (selective ? 2 : 4) * model_.config.hidden;
  // Statistics of the norms and the attention stay f32.
  return (shared / tp + whole / (layout.sequence_parallel() ? tp : 1)) * ElementBytes(layout) +
         (model_.config.heads / tp + 4) * kF32Bytes;
}

int64_t MemoryEstimator::ActivationBytes(const v1::Layout& layout,
                                         const EstimatedStage& stage) const {
  const int64_t tokens =
      int64_t{layout.micro_batch()} * model_.sequence / layout.context_parallel();
  const int64_t boundary = model_.config.hidden * ElementBytes(layout) /
                           (layout.sequence_parallel() ? layout.tensor_parallel() : 1);
  const int64_t chunk_layers = std::max<int64_t>(1, stage.layers / layout.interleave());
  const int64_t group = RecomputeGroup(layout, chunk_layers);
  const int64_t chunk_bytes = group == 0 ? chunk_layers * LayerTokenBytes(layout)
                                         : (chunk_layers + group - 1) / group * boundary;
  return tokens * (ChunksInFlight(layout, stage.index) * chunk_bytes +
                   group * LayerTokenBytes(layout) + 3 * boundary);
}

MemoryEstimate MemoryEstimator::StageMemory(const v1::Layout& layout,
                                            const EstimatedStage& stage) const {
  const uint32_t zero = layout.zero_stage();
  const int64_t shards = ShardRanks(layout);
  const int64_t whole = kF32Bytes * stage.parameters / layout.tensor_parallel();
  // What ZeRO gathers or has not scattered yet.
  const int64_t passing = kF32Bytes *
                          std::max(2 * model_.layer_parameters, model_.embedding_parameters) /
                          layout.tensor_parallel();
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

void MemoryEstimator::Offload(const v1::Layout& layout, const EstimatedStage& stage,
                              MemoryEstimate* memory) const {
  constexpr int64_t kRingBuffers = 4;  // of each operand of the optimizer (compiler/staging.h)
  const v1::Offload& offload = layout.offload();
  const int64_t whole = kF32Bytes * stage.parameters / layout.tensor_parallel();
  const int64_t share = whole / ShardRanks(layout);
  const int64_t passing = kF32Bytes *
                          std::max(2 * model_.layer_parameters, model_.embedding_parameters) /
                          layout.tensor_parallel();
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

MemoryEstimate MemoryEstimator::Memory(const v1::Layout& layout) const {
  MemoryEstimate most;
  for (const EstimatedStage& stage : model_.Stages(layout)) {
    const MemoryEstimate memory = StageMemory(layout, stage);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

}  // namespace terrace
