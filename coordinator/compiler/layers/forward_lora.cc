// Low-rank adapters in the forward pass (forward.h): Hu et al. 2021 (LoRA, arXiv 2106.09685).
//
// A's of layers that share their input are one matrix, as the layers' own weights are. Where the
// outputs of a layer are split over tensor-parallel ranks each has its part of B and all of A,
// where its inputs are split all of B and its part of A: then A x is a part of a sum that the
// block's end adds up, and no message is sent for the adapter.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "coordinator/compiler/layers/forward.h"
#include "coordinator/compiler/state/partition.h"
#include "coordinator/model/lora.h"

namespace terrace::compiler {

using kernels::Op;

bool Forward::HasAdapter(TensorRole weight) const {
  return config_.lora.rank > 0 && parameters_.Find(LoraB(weight), builder_.layer) != kNone;
}

// Columns of the layer's result that this rank computes.
int64_t Forward::Outputs(TensorRole weight) const {
  const int64_t heads = LocalHeads(config_, parallel_), kv = LocalKeyHeads(config_, parallel_);
  switch (weight) {
    case TensorRole::kQkv:
      return (heads + 2 * kv) * config_.head_dim;
    case TensorRole::kQ:
      return heads * config_.head_dim;
    case TensorRole::kK:
    case TensorRole::kV:
      return kv * config_.head_dim;
    case TensorRole::kMlpUp:
      return config_.intermediate / parallel_.tensor();
    case TensorRole::kMlpGate:
      return (config_.fused_gate_up ? 2 : 1) * config_.intermediate / parallel_.tensor();
    default:
      return config_.hidden;
  }
}

void Forward::Adapt(Slice x, TensorRole weight, Slice y, const std::string& name) {
  if (is_reference_) return;
  std::vector<TensorRole> layers = {weight};
  for (TensorRole role : StoredWith(weight, parallel_)) layers.push_back(role);
  const auto first =
      std::find_if(layers.begin(), layers.end(), [&](TensorRole role) { return HasAdapter(role); });
  if (first == layers.end()) return;
  const int64_t rank = config_.lora.rank;
  const kernels::MatmulPrecision precision = options_.precisions.Of(weight, builder_.layer);
  const Slice a = Weight(LoraA(*first));
  const Slice low = Activation(name + ".lora", x.shape.rows(), a.shape.rows());
  const bool split = weight == TensorRole::kAttentionOut || weight == TensorRole::kMlpDown;
  const Slice read = Drop(x, config_.dropout.adapter, SiteOf(weight), split, name + ".lora");
  Linear(read, a, {}, low, precision, {.transpose = true}, name + " lora A");
  const kernels::ScaleAttrs scale = {.scale = static_cast<float>(config_.lora.scale)};
  if (scale.scale != 1) builder_.Compute(Op::kScale, scale, {low}, name + " lora scale");
  int64_t column = 0, adapter = 0;
  for (const TensorRole role : layers) {
    const int64_t outputs = Outputs(role);
    if (HasAdapter(role)) {
      Linear(Columns(low, rank * adapter++, rank), Weight(LoraB(role)), {},
             Columns(y, column, outputs), precision, {.transpose = true, .accumulate = true},
             name + " lora B");
    }
    column += outputs;
  }
}

}  // namespace terrace::compiler
