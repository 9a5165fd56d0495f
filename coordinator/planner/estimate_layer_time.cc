// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_layer_time.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "coordinator/layout/precision.h"
#include "proto/peak_flops.h"

namespace terrace {
namespace {

// Kernels beside the products: norms, sums, rotations, activations.
constexpr double kForwardKernels = 6, kBackwardKernels = 8;

class Kernels {
 public:
  Kernels(std::string precision, const ComputeTime& compute, const v1::HardwareProfile& profile)
      : compute_(compute), profile_(profile), precision_(std::move(precision)) {}

  double Matmul(const std::string& kernel, int64_t rows, int64_t columns, int64_t inner) const {
    const double flops =
        2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(inner);
    return At({.kernel = kernel,
               .precision = precision_,
               .rows = rows,
               .columns = columns,
               .inner = inner},
              flops);
  }
  // y = x w^T, and the gradients of x and of w.
  double Forward(int64_t tokens, int64_t out, int64_t in) const {
    return Matmul("matmul_nt", tokens, out, in);
  }
  double Backward(int64_t tokens, int64_t out, int64_t in) const {
    return Matmul("matmul", tokens, in, out) + Weights(tokens, out, in);
  }
  double Weights(int64_t tokens, int64_t out, int64_t in) const {
    return Matmul("matmul_tn", out, in, tokens);
  }
  double Attention(const std::string& kernel, int64_t sequence, int64_t head, int64_t heads,
                   double flops) const {
    // It stays in bf16 where products are fp8, in fp32 where they are tf32.
    const bool f32 = precision_ == "fp32" || precision_ == "tf32";
    return At({.kernel = kernel,
               .precision = f32                    ? "fp32"
                            : precision_ == "fp16" ? "fp16"
                                                   : "bf16",
               .rows = sequence,
               .columns = head,
               .inner = heads},
              flops);
  }
  double Light(double bytes, double kernels) const {
    return bytes / std::max(1.0, profile_.memory_bytes_per_second()) +
           kernels * profile_.instruction_overhead_seconds();
  }

 private:
  double At(const kernels::RateClass& shape, double flops) const {
    double rate = compute_.Rate(shape);
    if (rate <= 0) {
      rate = PeakFlops(profile_, shape.precision == "fp8" ? "bf16" : shape.precision);
    }
    return flops / std::max(1.0, rate) + profile_.instruction_overhead_seconds();
  }

  const ComputeTime& compute_;
  const v1::HardwareProfile& profile_;
  const std::string precision_;
};

// Keys that a query sees on average, over all layers.
double MeanKeys(const ModelConfig& config, int64_t sequence) {
  const auto s = static_cast<double>(sequence);
  double keys = 0;
  for (const int64_t window : config.window) {
    const double w = window == 0 ? s : std::min(static_cast<double>(window), s);
    keys += w * (1 - w / (2 * s));
  }
  return config.window.empty() ? s / 2 : keys / static_cast<double>(config.window.size());
}

int64_t Tokens(const EstimateModel& model, const v1::Layout& layout) {
  return std::max<int64_t>(
      1, int64_t{layout.micro_batch()} * model.sequence / layout.context_parallel());
}

int64_t AtLeastOne(int64_t size) { return std::max<int64_t>(1, size); }

}  // namespace

LayerTime TimeOfLayer(const EstimateModel& model, const v1::Layout& layout,
                      const ComputeTime& compute, const v1::HardwareProfile& profile) {
  const ModelConfig& config = model.config;
  const Kernels kernels(layout.precision(), compute, profile);  // of all but products
  const int64_t tp = layout.tensor_parallel();
  const int64_t tokens = Tokens(model, layout);
  const int64_t q = AtLeastOne(config.heads * config.head_dim / tp);
  const int64_t kv = AtLeastOne(config.kv_heads * config.head_dim / tp);
  const int64_t inner = AtLeastOne(config.intermediate / tp);
  const bool gated = config.mlp == MlpKind::kGated;
  const auto t = static_cast<double>(tokens);

  // Round a context ring each rank attends piece by piece, half of them half as long.
  const bool ring = layout.context_parallel() > 1 && layout.context_type() != "ulysses";
  const auto rows = static_cast<int64_t>(static_cast<double>(model.sequence) /
                                         (ring ? std::sqrt(2.0) * layout.context_parallel() : 1));
  const double attention_flops = 4 * t * MeanKeys(config, model.sequence) * static_cast<double>(q);
  const int64_t heads = AtLeastOne(config.heads / tp * layout.micro_batch());
  LayerTime time;
  time.attention_forward =
      kernels.Attention("attention", rows, config.head_dim, heads, attention_flops);
  time.attention_backward =
      kernels.Attention("attention_grad", rows, config.head_dim, heads, 2.5 * attention_flops);
  // Between the products: two norms and two residual sums on whole rows (shared with sequence
  // parallelism), rotations, the activation.
  const double row = static_cast<double>(config.hidden) /
                     (layout.sequence_parallel() ? static_cast<double>(tp) : 1);
  const bool turns = !config.learned_positions && !config.alibi;
  const double turned = !turns ? 0 : 2.0 * static_cast<double>(q + kv);
  const double element = static_cast<double>(ElementBytes(layout));
  const auto f = static_cast<double>(inner);
  time.light =
      kernels.Light(t * element * (10 * row + (gated ? 3 : 2) * f + turned), kForwardKernels);
  time.forward = time.light + time.attention_forward;
  time.backward =
      kernels.Light(t * element * (12 * row + (gated ? 5 : 3) * f + turned), kBackwardKernels) +
      time.attention_backward;
  const int64_t hidden = config.hidden, up = (gated ? 2 : 1) * inner;
  const auto product = [&](const PrecisionShare& of, int64_t out, int64_t in) {
    const Kernels products(std::string(of.precision), compute, profile);
    time.forward += of.share * products.Forward(tokens, out, in);
    time.backward += of.share * products.Backward(tokens, out, in);
    time.weights += of.share * products.Weights(tokens, out, in);
  };
  for (const PrecisionShare& of : AttentionShares(layout)) {
    product(of, q + 2 * kv, hidden);
    product(of, hidden, q);
  }
  for (const PrecisionShare& of : MlpShares(layout)) {
    product(of, up, hidden);
    product(of, hidden, inner);
  }
  return time;
}

double HeadSeconds(const EstimateModel& model, const v1::Layout& layout, const ComputeTime& compute,
                   const v1::HardwareProfile& profile) {
  const Kernels kernels(std::string(HeadPrecision(layout)), compute, profile);
  const int64_t tokens = Tokens(model, layout);
  const int64_t vocabulary = AtLeastOne(model.config.vocabulary / layout.tensor_parallel());
  // Logits and their gradients: written, read by the loss, read by both products.
  const double logits = 5.0 * static_cast<double>(tokens) * static_cast<double>(vocabulary) *
                        static_cast<double>(ElementBytes(layout));
  return kernels.Forward(tokens, vocabulary, model.config.hidden) +
         kernels.Backward(tokens, vocabulary, model.config.hidden) + kernels.Light(logits, 2);
}

double WeightTraffic(const v1::Layout& layout, const v1::HardwareProfile& profile) {
  const double added = 2 * GradientShare(layout);
  if (profile.kernels_size() > 0) return added;
  const double reads = RecomputeOf(layout) == "none" ? 2 : 3;
  return added + reads * WeightShare(layout);
}

}  // namespace terrace
