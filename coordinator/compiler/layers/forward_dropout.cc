// Dropout in the forward pass (forward.h): Srivastava et al. 2014; and what else changes the result
// of a block before it is added to the residual stream.
//
// Each step of dropout goes to memory of its own: the gradient of a block's result is that of the
// residual stream as well, which nothing is dropped of, and a recomputed pass may repeat the
// dropout without the sum. Adapters that read the same value drop the same of it, so that their
// products stay one.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/forward.h"

namespace terrace::compiler {

using kernels::Op;

// Part of the random bits.
uint32_t Forward::NumberOf(DropoutSite site) const {
  constexpr uint32_t kSitesALayer = 16;
  return static_cast<uint32_t>(builder_.layer + 1) * kSitesALayer + static_cast<uint32_t>(site);
}

Slice Forward::Drop(Slice x, double probability, DropoutSite site, bool split,
                    const std::string& name) {
  if (!Drops(probability)) return x;
  const int64_t rows = x.shape.rows();
  const Slice y = Activation(name + ".dropped", rows, x.shape.RowElements());
  builder_.Compute(Op::kDropout,
                   kernels::DropoutAttrs{.probability = static_cast<float>(probability),
                                         .seed = options_.dropout_seed,
                                         .site = NumberOf(site),
                                         .row_shards = places_.shape.rows() / rows,
                                         .column_shards = split ? parallel_.tensor() : 1},
                   {x, places_, y}, name + " dropout");
  return y;
}

Forward::DropoutSite Forward::SiteOf(TensorRole weight) {
  switch (weight) {
    case TensorRole::kAttentionOut:
      return DropoutSite::kAdapterOfAttentionOut;
    case TensorRole::kMlpUp:
    case TensorRole::kMlpGate:
      return DropoutSite::kAdapterOfMlp;
    case TensorRole::kMlpDown:
      return DropoutSite::kAdapterOfMlpDown;
    default:
      return DropoutSite::kAdapterOfAttention;
  }
}

Slice Forward::AddChanged(Slice product, Slice residual, TensorRole weight, Slice bias,
                          const std::string& name) {
  const Slice sum = LeaveRegion(product, name);
  if (!bias.absent())
    builder_.Compute(Op::kAddResidual, kernels::NoAttrs{}, {sum, {}, bias, sum}, name + " + bias");
  const bool attention = weight == TensorRole::kAttentionOut;
  Slice normed = sum;
  if (config_.norm_after) {
    normed = attention ? Norm(sum, TensorRole::kAttentionAfterNorm,
                              TensorRole::kAttentionAfterNormBias, "attn_after_norm")
                       : Norm(sum, TensorRole::kMlpAfterNorm, TensorRole::kMlpAfterNormBias,
                              "mlp_after_norm");
  }
  Multiply(normed, config_.residual_scale, name);
  const DropoutSite site = attention ? DropoutSite::kAttentionOut : DropoutSite::kMlpOut;
  const Slice dropped = Drop(normed, config_.dropout.residual, site, /*split=*/false, name);
  const Slice y = NewResidual(name + ".residual");
  builder_.Compute(Op::kAddResidual, kernels::NoAttrs{}, {dropped, residual, {}, y},
                   name + " + residual");
  return y;
}

}  // namespace terrace::compiler
