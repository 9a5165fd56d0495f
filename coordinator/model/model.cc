// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/model/lora.h"

namespace terrace {
namespace {

// Adds tensors to a model in order of use.
class Builder {
 public:
  explicit Builder(Model* model) : model_(*model), config_(model->config) {}

  void Weight(TensorRole role, std::string name, std::vector<int64_t> shape, double stddev) {
    Add({std::move(name), std::move(shape), role, layer_, Init::kNormal, stddev});
  }
  void Ones(TensorRole role, std::string name, int64_t size) {
    Add({std::move(name), {size}, role, layer_, Init::kOnes});
  }
  void Zeros(TensorRole role, std::string name, int64_t size) {
    Add({std::move(name), {size}, role, layer_, Init::kZeros});
  }
  // A linear layer from `in` to `out`: [in, out] for Conv1D, [out, in] otherwise.
  void Linear(TensorRole role, const std::string& name, int64_t in, int64_t out, double stddev) {
    std::vector<int64_t> shape =
        config_.conv1d_weights ? std::vector<int64_t>{in, out} : std::vector<int64_t>{out, in};
    Weight(role, name + ".weight", std::move(shape), stddev);
    if (HasAdapter(config_.lora, name)) Adapter(role, name, in, out);
  }
  void set_layer(int64_t layer) { layer_ = layer; }

 private:
  void Add(Tensor tensor) { model_.tensors.push_back(std::move(tensor)); }

  // B begins at zero, so that the model begins as it was.
  void Adapter(TensorRole role, const std::string& name, int64_t in, int64_t out) {
    const LoraConfig& lora = config_.lora;
    const double uniform = 1 / std::sqrt(3.0 * static_cast<double>(in));  // +- 1 / sqrt(in)
    Add({name + ".lora_A.weight",
         {lora.rank, in},
         LoraA(role),
         layer_,
         lora.gaussian ? Init::kNormal : Init::kUniform,
         lora.gaussian ? 1.0 / static_cast<double>(lora.rank) : uniform});
    Add({name + ".lora_B.weight", {out, lora.rank}, LoraB(role), layer_, Init::kZeros});
  }

  Model& model_;
  const ModelConfig& config_;
  int64_t layer_ = -1;
};

void Gpt2Layer(const ModelConfig& c, int64_t layer, Builder& b) {
  using enum TensorRole;
  const std::string p = absl::StrCat("transformer.h.", layer, ".");
  // Residual projections start smaller: Radford et al. 2019, section 2.3.
  const double residual = c.initializer_range / std::sqrt(2.0 * c.layers);
  b.Ones(kAttentionNorm, p + "ln_1.weight", c.hidden);
  b.Zeros(kAttentionNormBias, p + "ln_1.bias", c.hidden);
  b.Linear(kQkv, p + "attn.c_attn", c.hidden, 3 * c.hidden, c.initializer_range);
  b.Zeros(kQkvBias, p + "attn.c_attn.bias", 3 * c.hidden);
  b.Linear(kAttentionOut, p + "attn.c_proj", c.hidden, c.hidden, residual);
  b.Zeros(kAttentionOutBias, p + "attn.c_proj.bias", c.hidden);
  b.Ones(kMlpNorm, p + "ln_2.weight", c.hidden);
  b.Zeros(kMlpNormBias, p + "ln_2.bias", c.hidden);
  b.Linear(kMlpUp, p + "mlp.c_fc", c.hidden, c.intermediate, c.initializer_range);
  b.Zeros(kMlpUpBias, p + "mlp.c_fc.bias", c.intermediate);
  b.Linear(kMlpDown, p + "mlp.c_proj", c.intermediate, c.hidden, residual);
  b.Zeros(kMlpDownBias, p + "mlp.c_proj.bias", c.hidden);
}

void LlamaLayer(const ModelConfig& c, int64_t layer, Builder& b) {
  using enum TensorRole;
  const std::string p = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = p + "self_attn.";
  const double std = c.initializer_range;
  const int64_t q = c.heads * c.head_dim;
  const int64_t kv = c.kv_heads * c.head_dim;
  auto linear = [&](TensorRole role, TensorRole bias_role, const std::string& name, int64_t in,
                    int64_t out, bool bias) {
    b.Linear(role, name, in, out, std);
    if (bias) b.Zeros(bias_role, name + ".bias", out);
  };
  b.Ones(kAttentionNorm, p + "input_layernorm.weight", c.hidden);
  linear(kQ, kQBias, attention + "q_proj", c.hidden, q, c.qkv_bias);
  linear(kK, kKBias, attention + "k_proj", c.hidden, kv, c.qkv_bias);
  linear(kV, kVBias, attention + "v_proj", c.hidden, kv, c.qkv_bias);
  if (c.qk_norm) {
    b.Ones(kQNorm, attention + "q_norm.weight", c.head_dim);
    b.Ones(kKNorm, attention + "k_norm.weight", c.head_dim);
  }
  linear(kAttentionOut, kAttentionOutBias, attention + "o_proj", q, c.hidden, c.attention_out_bias);
  b.Ones(kMlpNorm, p + "post_attention_layernorm.weight", c.hidden);
  linear(kMlpGate, kMlpGateBias, p + "mlp.gate_proj", c.hidden, c.intermediate, c.mlp_bias);
  linear(kMlpUp, kMlpUpBias, p + "mlp.up_proj", c.hidden, c.intermediate, c.mlp_bias);
  linear(kMlpDown, kMlpDownBias, p + "mlp.down_proj", c.intermediate, c.hidden, c.mlp_bias);
}

}  // namespace

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

Model BuildModel(const ModelConfig& config) {
  using enum TensorRole;
  Model model;
  model.config = config;
  Builder b(&model);
  const bool gpt2 = config.family == "gpt2";
  const std::string embedding = gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  const double std = config.initializer_range;
  b.Weight(kTokenEmbedding, embedding, {config.vocabulary, config.hidden}, std);
  if (config.learned_positions) {
    b.Weight(kPositionEmbedding, "transformer.wpe.weight", {config.max_positions, config.hidden},
             std);
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    b.set_layer(layer);
    gpt2 ? Gpt2Layer(config, layer, b) : LlamaLayer(config, layer, b);
  }
  b.set_layer(-1);
  b.Ones(kFinalNorm, gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", config.hidden);
  if (config.norm == NormKind::kLayerNorm)
    b.Zeros(kFinalNormBias, "transformer.ln_f.bias", config.hidden);
  if (config.tied_embeddings) {
    model.tied["lm_head.weight"] = embedding;
  } else {
    b.Weight(kLmHead, "lm_head.weight", {config.vocabulary, config.hidden}, std);
  }
  return model;
}

int64_t Model::Parameters() const {
  int64_t n = 0;
  for (const Tensor& tensor : tensors) n += tensor.elements();
  return n;
}

const Tensor* Model::Find(TensorRole role, int64_t layer) const {
  auto it = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
    return tensor.role == role && tensor.layer == layer;
  });
  return it == tensors.end() ? nullptr : &*it;
}

double FlopsPerToken(const Model& model, int64_t sequence_length) {
  const ModelConfig& c = model.config;
  double matrices = static_cast<double>(c.vocabulary) * c.hidden;  // the LM head
  for (const Tensor& tensor : model.tensors) {
    if (IsMatrixProduct(tensor.role)) matrices += tensor.elements();
  }
  double attention = 0;
  for (size_t layer = 0; layer < c.window.size(); ++layer)
    attention += AttentionFlopsPerToken(c, static_cast<int64_t>(layer), sequence_length);
  return 6.0 * matrices + attention;
}

double AttentionFlopsPerToken(const ModelConfig& config, int64_t layer, int64_t sequence_length) {
  const int64_t window = config.window[layer];
  const double s = sequence_length;
  // Keys that a query sees on average: s/2 when causal; w (1 - w/2s) when the window is shorter
  // than the sequence.
  const double w = window == 0 ? s : std::min<double>(window, s);
  return 12.0 * config.heads * config.head_dim * w * (1 - w / (2 * s));
}

bool IsMatrixProduct(TensorRole role) {
  using enum TensorRole;
  switch (AdaptedRole(role)) {
    case kQkv:
    case kQ:
    case kK:
    case kV:
    case kAttentionOut:
    case kMlpUp:
    case kMlpGate:
    case kMlpDown:
      return true;
    default:
      return false;
  }
}

}  // namespace terrace
