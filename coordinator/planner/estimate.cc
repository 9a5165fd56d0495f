// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr int64_t kF32Bytes = 4;

// Elements of activations that one token leaves in one layer for the backward pass: both norms, q k
// v, the attention's result, both residual sums and the MLP's inner values.
int64_t ElementsPerTokenAndLayer(const ModelConfig& config) {
  const int64_t qkv = (config.heads + 2 * config.kv_heads) * config.head_dim;
  const int64_t qk_norm = config.qk_norm ? (config.heads + config.kv_heads) * config.head_dim : 0;
  const int64_t inner = config.intermediate * (config.mlp == MlpKind::kSwiglu ? 3 : 2);
  return 4 * config.hidden + qkv + qk_norm + config.heads * config.head_dim + inner;
}

}  // namespace

MemoryEstimate EstimateMemory(const v1::JobSpec& spec, const Model& model,
                              const v1::Layout& layout) {
  const ModelConfig& config = model.config;
  const int64_t parameters = model.Parameters();
  const int64_t tokens = int64_t{layout.micro_batch()} * spec.data().sequence_length();
  const int64_t element_bytes = layout.precision() == "bf16" ? 2 : kF32Bytes;
  // Statistics of the norms and the attention stay f32.
  const int64_t token_layer_bytes =
      ElementsPerTokenAndLayer(config) * element_bytes + (config.heads + 4) * kF32Bytes;
  return {.state_bytes = 3 * kF32Bytes * parameters,
          .gradient_bytes = kF32Bytes * parameters,
          .activation_bytes =
              tokens * (config.layers * token_layer_bytes + 3 * config.hidden * element_bytes)};
}

double EstimateStepSeconds(const v1::JobSpec& spec, const Model& model, const v1::Layout& layout,
                           const v1::HardwareProfile& profile) {
  // An ordinary layer and its backward pass.
  constexpr double kInstructionsPerLayer = 24;
  const int64_t sequence = spec.data().sequence_length();
  const double micro_batches = layout.micro_batches();
  const double tokens = micro_batches * layout.micro_batch() * sequence;
  const double parameter_bytes = static_cast<double>(kF32Bytes * model.Parameters());
  const bool bf16 = layout.precision() == "bf16";
  const double rate = bf16 ? profile.bf16_flops_per_second() : profile.f32_flops_per_second();
  const double memory_rate = std::max(1.0, profile.memory_bytes_per_second());

  const double compute = FlopsPerToken(model, sequence) * tokens / std::max(1.0, rate);
  // Each micro-batch reads the weights twice and adds to all gradients.
  const double weights = micro_batches * 4 * parameter_bytes / memory_rate;
  const double optimizer = 7 * parameter_bytes / memory_rate;
  const double overhead = micro_batches * kInstructionsPerLayer *
                          static_cast<double>(model.config.layers) *
                          profile.instruction_overhead_seconds();
  const double ranks = layout.data_parallel();
  const double reduce =
      2 * (ranks - 1) / ranks * parameter_bytes / std::max(1.0, profile.link_bytes_per_second());
  return compute + weights + optimizer + overhead + reduce;
}

}  // namespace terrace
