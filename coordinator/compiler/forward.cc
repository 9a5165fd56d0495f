// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/forward.h"

#include <cmath>

namespace terrace::compiler {

using kernels::DType;
using kernels::Epilogue;
using kernels::Op;

Slice Forward::Activation(const std::string& name, int64_t columns) {
  return builder_.NewValue(name, v1::ACTIVATION, options_.activation, {tokens(), columns});
}

Slice Forward::Statistic(const std::string& name, const Dims& dims) {
  return builder_.NewValue(name, v1::ACTIVATION, DType::kF32, dims);
}

Slice Forward::Layers(Slice tokens) {
  Slice x = Embedding(tokens);
  for (int layer = 0; layer < config_.layers; ++layer) {
    builder_.layer = layer;
    x = Attention(x);
    x = Mlp(x);
  }
  builder_.layer = kNone;
  return x;
}

Slice Forward::Embedding(Slice tokens) {
  const Slice x = Activation("x", config_.hidden);
  builder_.Compute(
      Op::kEmbedding, kernels::EmbeddingAttrs{.sequence = options_.sequence},
      {tokens, Weight(TensorRole::kTokenEmbedding), Weight(TensorRole::kPositionEmbedding), x},
      "embedding");
  return x;
}

Slice Forward::FinalNorm(Slice x) {
  return Norm(x, TensorRole::kFinalNorm, TensorRole::kFinalNormBias, "final_norm");
}

Slice Forward::Norm(Slice x, TensorRole weight, TensorRole bias, const std::string& name) {
  const int64_t rows = x.shape.rows();
  const Slice y =
      builder_.NewValue(name, v1::ACTIVATION, options_.activation, {rows, config_.hidden});
  if (config_.norm == NormKind::kRmsNorm) {
    RmsNorm(x, Weight(weight), y, name);
    return y;
  }
  const kernels::NormAttrs attrs = {.epsilon = static_cast<float>(config_.norm_epsilon)};
  const Slice mean = Statistic(name + ".mean", {rows});
  const Slice rstd = Statistic(name + ".rstd", {rows});
  builder_.Compute(Op::kLayerNorm, attrs, {x, Weight(weight), Weight(bias), y, mean, rstd}, name);
  return y;
}

void Forward::RmsNorm(Slice x, Slice weight, Slice y, const std::string& name) {
  const kernels::NormAttrs attrs = {.epsilon = static_cast<float>(config_.norm_epsilon)};
  Dims dims(x.shape.size.begin(), x.shape.size.begin() + x.shape.dims - 1);
  builder_.Compute(Op::kRmsNorm, attrs, {x, weight, y, Statistic(name + ".rstd", dims)}, name);
}

void Forward::Linear(Slice x, Slice weight, Slice bias, Slice y, const LinearOptions& options,
                     const std::string& name) {
  const kernels::MatmulAttrs attrs = {.transpose_b = options.transpose,
                                      .epilogue = options.epilogue,
                                      .precision = options_.precision};
  builder_.Compute(Op::kMatmul, attrs, {x, weight, y, bias, options.residual, options.aux}, name);
}

Slice Forward::Attention(Slice x) {
  const Slice normed =
      Norm(x, TensorRole::kAttentionNorm, TensorRole::kAttentionNormBias, "attn_norm");
  const Slice qkv = QkvProduct(normed);
  const int64_t qk_columns = (config_.heads + config_.kv_heads) * config_.head_dim;
  Slice qk = Columns(qkv, 0, qk_columns);
  if (config_.qk_norm) qk = HeadNorms(qkv);
  if (options_.rope_table != kNone) {
    const int64_t heads = config_.heads + config_.kv_heads;
    builder_.Compute(Op::kRope, kernels::RopeAttrs{.sequence = options_.sequence},
                     {Reshape(qk, {tokens(), heads, config_.head_dim}),
                      builder_.graph().Whole(options_.rope_table)},
                     "rope");
  }
  const Heads heads = SplitHeads(qk, Columns(qkv, qk_columns, config_.kv_heads * config_.head_dim));
  const Slice o = Activation("attn", config_.heads * config_.head_dim);
  const Slice lse = Statistic("attn.lse", {options_.batch, config_.heads, options_.sequence});
  const int64_t window = config_.window.empty() ? 0 : config_.window[builder_.layer];
  builder_.Compute(
      Op::kAttention,
      kernels::AttentionAttrs{.sequence = options_.sequence,
                              .window = window < options_.sequence ? window : 0,
                              .scale = static_cast<float>(1.0 / std::sqrt(config_.head_dim)),
                              .precision = options_.precision},
      {heads.q, heads.k, heads.v, Reshape(o, {tokens(), config_.heads, config_.head_dim}), lse},
      "attention");
  const Slice y = Activation("attn_out", config_.hidden);
  LinearOptions linear = Stored();
  linear.residual = x;
  Linear(o, Weight(TensorRole::kAttentionOut), Weight(TensorRole::kAttentionOutBias), y, linear,
         "attn_out");
  return y;
}

// One product for q, k and v: their weights lie next to each other (parameters.h), and so do the
// columns of the result.
Slice Forward::QkvProduct(Slice x) {
  const Slice qkv = Activation("qkv", (config_.heads + 2 * config_.kv_heads) * config_.head_dim);
  const bool fused = config_.fused_qkv;
  Linear(x, Weight(fused ? TensorRole::kQkv : TensorRole::kQ),
         Weight(fused ? TensorRole::kQkvBias : TensorRole::kQBias), qkv, Stored(), "qkv");
  return qkv;
}

// RMSNorm of each head of q and k, into memory of its own: the backward pass needs q and k as they
// were.
Slice Forward::HeadNorms(Slice qkv) {
  const int64_t d = config_.head_dim;
  const Slice qk = Activation("qk_norm", (config_.heads + config_.kv_heads) * d);
  const auto norm = [&](int64_t first_head, int64_t heads, TensorRole weight, const char* name) {
    const auto part = [&](Slice slice) {
      return Reshape(Columns(slice, first_head * d, heads * d), {tokens(), heads, d});
    };
    RmsNorm(part(qkv), Weight(weight), part(qk), name);
  };
  norm(0, config_.heads, TensorRole::kQNorm, "q_norm");
  norm(config_.heads, config_.kv_heads, TensorRole::kKNorm, "k_norm");
  return qk;
}

Forward::Heads Forward::SplitHeads(Slice qk, Slice v) const {
  const int64_t d = config_.head_dim;
  const int64_t q_columns = config_.heads * d;
  const int64_t kv_columns = config_.kv_heads * d;
  return {.q = Reshape(Columns(qk, 0, q_columns), {tokens(), config_.heads, d}),
          .k = Reshape(Columns(qk, q_columns, kv_columns), {tokens(), config_.kv_heads, d}),
          .v = Reshape(v, {tokens(), config_.kv_heads, d})};
}

Slice Forward::Mlp(Slice x) {
  const Slice normed = Norm(x, TensorRole::kMlpNorm, TensorRole::kMlpNormBias, "mlp_norm");
  const Slice h = config_.mlp == MlpKind::kGelu ? GeluMlp(normed) : SwigluMlp(normed);
  const Slice y = Activation("mlp_out", config_.hidden);
  LinearOptions linear = Stored();
  linear.residual = x;
  Linear(h, Weight(TensorRole::kMlpDown), Weight(TensorRole::kMlpDownBias), y, linear, "mlp_down");
  return y;
}

Slice Forward::GeluMlp(Slice x) {
  const Slice h = Activation("mlp_gelu", config_.intermediate);
  LinearOptions linear = Stored();
  linear.epilogue = Epilogue::kGelu;
  if (options_.for_backward) linear.aux = Activation("mlp_up", config_.intermediate);
  Linear(x, Weight(TensorRole::kMlpUp), Weight(TensorRole::kMlpUpBias), h, linear, "mlp_up");
  return h;
}

// One product for gate and up.
Slice Forward::SwigluMlp(Slice x) {
  const int64_t f = config_.intermediate;
  const Slice gate_up = Activation("mlp_gate_up", 2 * f);
  Linear(x, Weight(TensorRole::kMlpGate), Weight(TensorRole::kMlpGateBias), gate_up, Stored(),
         "mlp_gate_up");
  const Slice h = Activation("mlp_swiglu", f);
  builder_.Compute(Op::kSwiglu, kernels::NoAttrs{},
                   {Columns(gate_up, 0, f), Columns(gate_up, f, f), h}, "swiglu");
  return h;
}

void Forward::Loss(Slice hidden, Slice targets, Slice stats) {
  const TensorRole head =
      config_.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kLmHead;
  builder_.Compute(Op::kLmHeadLoss, kernels::LossAttrs{.precision = options_.precision},
                   {hidden, Weight(head), targets, stats}, "lm_head_loss");
}

Slice Forward::Logits(Slice hidden) {
  const TensorRole head =
      config_.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kLmHead;
  const Slice logits = builder_.NewValue("logits", v1::ACTIVATION, DType::kF32,
                                         {hidden.shape.rows(), config_.vocabulary});
  Linear(hidden, Weight(head), {}, logits, {.transpose = true}, "lm_head");
  return logits;
}

}  // namespace terrace::compiler
