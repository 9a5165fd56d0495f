// A model as tensors with global names: what is trained, stored, initialised and counted. Names and
// shapes are the Hugging Face Hub's, so that a checkpoint loads in `transformers` unchanged.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/model/config.h"

namespace terrace {

// What a tensor is for; with the layer it identifies it.
enum class TensorRole {
  kTokenEmbedding,
  kPositionEmbedding,
  kEmbeddingNorm,
  kEmbeddingNormBias,
  kFinalNorm,
  kFinalNormBias,
  kLmHead,
  kAttentionNorm,
  kAttentionNormBias,
  kAttentionAfterNorm,
  kAttentionAfterNormBias,
  kQkv,
  kQkvBias,
  kQ,
  kQBias,
  kK,
  kKBias,
  kV,
  kVBias,
  kQNorm,
  kKNorm,
  kAttentionOut,
  kAttentionOutBias,
  kMlpNorm,
  kMlpNormBias,
  kMlpAfterNorm,
  kMlpAfterNormBias,
  kMlpUp,
  kMlpUpBias,
  kMlpGate,  // with fused_gate_up also that of up, below it
  kMlpGateBias,
  kMlpDown,
  kMlpDownBias,
  // Of adapters (lora.h): [rank, in] and [out, rank].
  kQkvLoraA,
  kQkvLoraB,
  kQLoraA,
  kQLoraB,
  kKLoraA,
  kKLoraB,
  kVLoraA,
  kVLoraB,
  kAttentionOutLoraA,
  kAttentionOutLoraB,
  kMlpUpLoraA,
  kMlpUpLoraB,
  kMlpGateLoraA,
  kMlpGateLoraB,
  kMlpDownLoraA,
  kMlpDownLoraB,
};

// Of what a token passes before the first layer.
constexpr bool IsOfEmbedding(TensorRole role) {
  return role == TensorRole::kTokenEmbedding || role == TensorRole::kPositionEmbedding ||
         role == TensorRole::kEmbeddingNorm || role == TensorRole::kEmbeddingNormBias;
}

enum class Init { kNormal, kUniform, kOnes, kZeros };

struct Tensor {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // as stored
  TensorRole role;
  int64_t layer = -1;  // -1: not in a layer
  Init init = Init::kNormal;
  double stddev = 0.0;  // of kNormal and kUniform
  int64_t elements() const;
};

struct Model {
  ModelConfig config;
  std::vector<Tensor> tensors;  // in order of use in the forward pass; a tied LM head is not listed
  // Names a checkpoint may carry besides: the tied LM head -> the embedding.
  std::map<std::string, std::string> tied;

  int64_t Parameters() const;  // tied tensors once
  // Null when the model has no such tensor.
  const Tensor* Find(TensorRole role, int64_t layer = -1) const;
};

Model BuildModel(const ModelConfig& config);

// Model FLOPs of one token, forward and backward, no recompute: 6 x (parameters in matrix products)
// + causal attention (12 L h s, halved; Korthikanti et al. 2022, arXiv 2205.05198, appendix A). The
// embedding look-up counts nothing, the LM head counts.
double FlopsPerToken(const Model& model, int64_t sequence_length);
// Of these, those of the attention of one layer.
double AttentionFlopsPerToken(const ModelConfig& config, int64_t layer, int64_t sequence_length);
// A weight that tokens of a layer are multiplied with; the LM head's is not listed.
bool IsMatrixProduct(TensorRole role);

}  // namespace terrace
