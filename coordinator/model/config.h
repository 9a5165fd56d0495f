// A transformer's architecture, read from a Hugging Face config.json or a preset: every number the
// compiler needs, no framework's names left. Families are the rows of family.h.
//
// In: the text of config.json. Out: ModelConfig, or INVALID_ARGUMENT that lists every problem (key,
// value, rule, way out). Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

enum class NormKind { kLayerNorm, kRmsNorm };
// down(f(up x)), or with a gate, down(f(gate x) * (up x)).
enum class MlpKind { kPlain, kGated };
enum class ActivationKind { kGeluTanh, kGelu, kRelu, kSilu };
// How the weights of q, k and v lie: three tensors; one of q, then k, then v; or one in which each
// key head's k and v follow the queries that see it, key head after key head.
enum class QkvKind { kApart, kFused, kByHead };

struct RopeConfig {
  // One angle per pair of elements of a head: angle(position, i) = position * inverse_frequency[i].
  // Scaling (linear, dynamic at the trained length, llama3, yarn, longrope) is applied already.
  // Empty: no rotary embedding.
  // The first twice as many elements of a head are rotated.
  std::vector<double> inverse_frequency;
  double attention_factor = 1.0;  // multiplies cos and sin (YaRN, arXiv 2309.00071, section 3.4)
  int64_t rotated() const { return 2 * static_cast<int64_t>(inverse_frequency.size()); }
};

// Low-rank adapters of linear layers (LoRA, Hu et al. 2021, arXiv 2106.09685): beside W there are
// A [rank, in] and B [out, rank], and the layer gives W x + scale B (A x).
struct LoraConfig {
  int64_t rank = 0;  // 0: no adapters
  double scale = 1;
  // Linear layers of the transformer's layers by name or by the last parts of it, as PEFT's
  // target_modules; "all-linear" is all of them.
  std::vector<std::string> targets;
  bool gaussian = false;  // A begins normal with 1 / rank, else uniform as torch.nn.Linear
};

inline constexpr double kMaxDropout = 0.99;

// Probabilities with which elements of an activation are dropped in training (Srivastava et al.
// 2014); 0: none are.
struct DropoutConfig {
  double embedding = 0;  // of the sum of the embeddings
  double residual = 0;   // of what a block adds to the residual stream
  double attention = 0;  // of the softmax of scores
  double adapter = 0;    // of what adapters read; not of config.json
};

struct ModelConfig {
  std::string family;  // its model_type: a row of family.h
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;
  int64_t max_positions = 0;
  NormKind norm = NormKind::kRmsNorm;
  double norm_epsilon = 1e-5;
  bool norm_unit_offset = false;  // norms multiply by 1 + weight (gemma)
  bool norm_bias = true;          // of LayerNorm (cohere has none)
  bool norm_before = true;        // norms of what attention and MLP read
  bool norm_after = false;        // norms of what attention and MLP give, before the sum (olmo2)
  bool shared_norm = false;       // the MLP reads what the attention reads (falcon)
  MlpKind mlp = MlpKind::kGated;
  ActivationKind activation = ActivationKind::kSilu;
  bool parallel_residual = false;  // attention and MLP read the same x, both are added to it
  bool learned_positions = false;
  int64_t position_rows_before = 0;  // of their table, before the first position's row (opt)
  RopeConfig rope;
  RopeConfig local_rope;  // of layers with a window, where they have one of their own (gemma3)
  std::vector<bool> unrotated;    // per layer: without rotary embedding; empty: none is (smollm3)
  bool interleaved_rope = false;  // pairs of neighbours are rotated, not of halves (cohere)
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;        // RMSNorm over each head of q and k (qwen3)
  bool qk_norm_whole = false;  // ... over all heads of q, and all of k, at once (olmo2)
  bool tied_embeddings = false;
  QkvKind qkv = QkvKind::kApart;
  bool fused_gate_up = false;   // one tensor of the gate's rows, then those of up (phi3)
  bool conv1d_weights = false;  // linear weights stored [in, out] (gpt2) instead of [out, in]
  std::vector<int64_t> window;  // per layer; 0: full attention
  double embedding_scale = 1;   // what enters the first layer is the embedding times this
  double attention_scale = 0;   // of scores before their softmax; 0: 1 / sqrt(head_dim)
  double residual_scale = 1;    // a block adds its result times this (granite)
  double logits_scale = 1;      // logits are the head's products times this
  double score_softcap = 0;     // scores s are c tanh(s / c) (gemma2); 0: as they are
  double logits_softcap = 0;    // logits z are c tanh(z / c); 0: as they are
  bool alibi = false;           // scores fall with the distance of the key (bloom)
  bool embedding_norm = false;  // LayerNorm of the embeddings (bloom)
  double initializer_range = 0.02;
  LoraConfig lora;  // not of config.json
  DropoutConfig dropout;
  // Sentences for people: what config.json asks for and does not get, and keys that nothing reads.
  std::vector<std::string> remarks;
};

// The rotary angles of a layer; null where it has none.
const RopeConfig* RopeOf(const ModelConfig& config, int64_t layer);

// `sequence_length` is what the job trains with: it must fit the positions, and dynamic scalings
// depend on it.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json, int64_t sequence_length);

}  // namespace terrace
