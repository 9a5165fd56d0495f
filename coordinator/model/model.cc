// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/model/family.h"
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
  // Begins with the factor 1.
  void NormWeight(TensorRole role, std::string name, int64_t size) {
    const Init init = config_.norm_unit_offset ? Init::kZeros : Init::kOnes;
    Add({std::move(name), {size}, role, layer_, init});
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

bool HasNormBias(const ModelConfig& config) {
  return config.norm == NormKind::kLayerNorm && config.norm_bias;
}

// Linear layers, norms and their biases of one layer, under the family's names.
class LayerBuilder {
 public:
  LayerBuilder(const ModelConfig& config, const Family& family, int64_t layer, Builder* b)
      : c_(config),
        names_(family.names),
        prefix_(absl::StrCat(Absl(names_.layers), layer, ".")),
        residual_stddev_(family.small_residual_init
                             ? c_.initializer_range / std::sqrt(2.0 * c_.layers)
                             : c_.initializer_range),
        b_(*b) {}

  void Attention() {
    using enum TensorRole;
    const int64_t q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim;
    if (c_.norm_before) Norm(kAttentionNorm, kAttentionNormBias, NormNames().first);
    if (c_.qkv != QkvKind::kApart) {
      Linear(kQkv, kQkvBias, names_.qkv, c_.hidden, q + 2 * kv, c_.qkv_bias);
    } else {
      Linear(kQ, kQBias, names_.q, c_.hidden, q, c_.qkv_bias);
      Linear(kK, kKBias, names_.k, c_.hidden, kv, c_.qkv_bias);
      Linear(kV, kVBias, names_.v, c_.hidden, kv, c_.qkv_bias);
    }
    if (c_.qk_norm) {
      b_.NormWeight(kQNorm, Name(names_.q_norm, ".weight"), c_.qk_norm_whole ? q : c_.head_dim);
      b_.NormWeight(kKNorm, Name(names_.k_norm, ".weight"), c_.qk_norm_whole ? kv : c_.head_dim);
    }
    stddev_ = residual_stddev_;
    Linear(kAttentionOut, kAttentionOutBias, names_.attention_out, q, c_.hidden,
           c_.attention_out_bias);
    if (c_.norm_after)
      Norm(kAttentionAfterNorm, kAttentionAfterNormBias, names_.attention_after_norm);
  }

  void Mlp() {
    using enum TensorRole;
    if (c_.norm_before && !c_.shared_norm) Norm(kMlpNorm, kMlpNormBias, NormNames().second);
    stddev_ = c_.initializer_range;
    if (c_.mlp == MlpKind::kGated) {
      Linear(kMlpGate, kMlpGateBias, names_.mlp_gate, c_.hidden,
             (c_.fused_gate_up ? 2 : 1) * c_.intermediate, c_.mlp_bias);
    }
    if (!c_.fused_gate_up)
      Linear(kMlpUp, kMlpUpBias, names_.mlp_up, c_.hidden, c_.intermediate, c_.mlp_bias);
    stddev_ = residual_stddev_;
    Linear(kMlpDown, kMlpDownBias, names_.mlp_down, c_.intermediate, c_.hidden, c_.mlp_bias);
    if (c_.norm_after) Norm(kMlpAfterNorm, kMlpAfterNormBias, names_.mlp_after_norm);
  }

 private:
  std::string Name(std::string_view module, std::string_view ending = {}) const {
    return absl::StrCat(prefix_, Absl(module), Absl(ending));
  }
  // Before attention and MLP.
  std::pair<std::string_view, std::string_view> NormNames() const {
    const bool two = c_.parallel_residual && !c_.shared_norm && !names_.two_norms.first.empty();
    return two ? names_.two_norms : std::pair(names_.attention_norm, names_.mlp_norm);
  }
  void Norm(TensorRole weight, TensorRole bias, std::string_view module) {
    b_.NormWeight(weight, Name(module, ".weight"), c_.hidden);
    if (HasNormBias(c_)) b_.Zeros(bias, Name(module, ".bias"), c_.hidden);
  }
  void Linear(TensorRole weight, TensorRole bias, std::string_view module, int64_t in, int64_t out,
              bool has_bias) {
    b_.Linear(weight, Name(module), in, out, stddev_);
    if (has_bias) b_.Zeros(bias, Name(module, ".bias"), out);
  }

  const ModelConfig& c_;
  const FamilyNames& names_;
  const std::string prefix_;
  const double residual_stddev_;
  double stddev_ = c_.initializer_range;
  Builder& b_;
};

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
  const Family& family = *FindFamily(config.family);
  const std::string embedding = absl::StrCat(Absl(family.names.token_embedding), ".weight");
  const double std = config.initializer_range;
  b.Weight(kTokenEmbedding, embedding, {config.vocabulary, config.hidden}, std);
  if (config.learned_positions) {
    b.Weight(kPositionEmbedding, absl::StrCat(Absl(family.names.position_embedding), ".weight"),
             {config.position_rows_before + config.max_positions, config.hidden}, std);
  }
  if (config.embedding_norm) {
    const std::string norm(family.names.embedding_norm);
    b.NormWeight(kEmbeddingNorm, norm + ".weight", config.hidden);
    if (HasNormBias(config)) b.Zeros(kEmbeddingNormBias, norm + ".bias", config.hidden);
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    b.set_layer(layer);
    LayerBuilder one(config, family, layer, &b);
    one.Attention();
    one.Mlp();
  }
  b.set_layer(-1);
  const std::string final_norm(family.names.final_norm);
  b.NormWeight(kFinalNorm, final_norm + ".weight", config.hidden);
  if (HasNormBias(config)) b.Zeros(kFinalNormBias, final_norm + ".bias", config.hidden);
  const std::string head = absl::StrCat(Absl(family.names.head), ".weight");
  if (config.tied_embeddings) {
    model.tied[head] = embedding;
  } else {
    b.Weight(kLmHead, head, {config.vocabulary, config.hidden}, std);
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
