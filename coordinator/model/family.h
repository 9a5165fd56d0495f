// The families of models that Terrace trains, one row each: what of an architecture is not a number
// of config.json, by which keys the numbers are read, and how transformers names the tensors.
// Reading a config.json and naming its tensors follow from the row
// (docs/checklists/new_family.md).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/model/config.h"

namespace terrace {

// A bias that a key asks for, or none or always where `key` is empty.
struct BiasRule {
  std::string_view key = {};
  bool otherwise = false;  // what holds without the key
};

// The part of a head that is rotated, and the base of the angles.
struct RotaryRule {
  double part = 1;  // what holds without a key
  // Keys beside rope_parameters; in it they are called partial_rotary_factor and rope_theta.
  std::string_view part_key = "partial_rotary_factor", theta_key = "rope_theta";
  bool whole_only = true;  // the family's code rotates the whole head
  // Angles are scaled by longrope or not at all, and "yarn" is an old name of it.
  bool longrope_only = false;
  double theta = 10000;      // what the class takes without a key
  bool interleaved = false;  // pairs of neighbours are rotated
  // Layers with a window have angles of their own: those of rope_parameters.sliding_attention, the
  // others those of full_attention. Beside them `local_theta_key` (empty: none) gives their base.
  bool by_layer_type = false;
  std::string_view local_theta_key = {};
  double local_theta = 10000;
  // Layers without rotary embedding: those with a 0 in `unrotated_key`, or each so many-th.
  std::string_view unrotated_key = {}, unrotated_interval_key = {};
  int64_t unrotated_interval = 4;
  // The class takes this for original_max_position_embeddings where that does not stand beside the
  // other keys of the config, and reads none in rope_parameters. 0: as other classes.
  int64_t trained = 0;
};

// A switch of the class of which one value is supported.
struct FixedKey {
  std::string_view key;
  bool must = false;
  std::string_view otherwise = {};  // what would be asked for
};

enum class WindowRule {
  kNone,       // attention is full
  kKey,        // sliding_window in all layers
  kLayerKeys,  // sliding_window, in the layers that layer_types says
  kSwitched,   // the same with use_sliding_window, from the layer max_window_layers on
  kUnrotated,  // the same in the layers without rotary embedding
  kPattern,    // sliding_window in all layers but each window_pattern-th, or as layer_types says
};

// Names of modules without their endings. Empty: the family has no such module.
struct FamilyNames {
  std::string_view token_embedding, position_embedding, embedding_norm, final_norm;
  std::string_view head = "lm_head";  // of one that is not tied
  std::string_view layers;            // before the layer's number
  // These name norms before and behind a block. Where a key of the config asks for two norms of
  // blocks that stand side by side, these are called `two_norms`.
  std::string_view attention_norm, attention_after_norm, qkv, q, k, v, q_norm, k_norm,
      attention_out;
  std::string_view mlp_norm, mlp_after_norm, mlp_gate, mlp_up, mlp_down;
  std::pair<std::string_view, std::string_view> two_norms;
};

struct Family {
  std::string_view name;  // model_type
  NormKind norm = NormKind::kRmsNorm;
  bool norm_unit_offset = false;
  bool norm_bias = true;  // of LayerNorm
  MlpKind mlp = MlpKind::kGated;
  ActivationKind activation = ActivationKind::kSilu;
  std::string_view activation_key = "hidden_act";  // empty: `activation` always
  bool gelu_is_tanh = false;                       // "gelu" means the tanh form
  QkvKind qkv = QkvKind::kApart;
  bool fused_gate_up = false;                     // mlp_gate names one tensor of both
  std::string_view epsilon_key = "rms_norm_eps";  // empty: `epsilon` always
  double epsilon = 1e-6;
  // What the configuration class has where a key is left out. Zero: as many key heads as heads, a
  // head of hidden / heads elements, as many positions as a sequence has and no key for them.
  int64_t kv_heads = 0, head_dim = 0, max_positions = 0;
  std::string_view positions_key = "max_position_embeddings";
  // Other names of keys, by these, as the class's attribute map has them.
  std::span<const std::pair<std::string_view, std::string_view>> aliases = {};
  // The same of keys that the other families must have; zero: so must this one.
  int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0, intermediate = 0;
  int64_t intermediate_times = 0;  // the hidden size, where there is no such key
  // The token that the class takes for padding where the config names none; -1: none is.
  int64_t pad_token = -1;
  int64_t position_rows_before = 0;  // of the table of learned positions, before the first's row
  bool grouped_queries = true;  // else there are as many key heads as heads, and no key for them
  bool head_dim_key = true;     // else a head has hidden / heads elements
  std::string_view intermediate_key = "intermediate_size";  // empty: there is none
  std::string_view initializer_key = "initializer_range";
  double initializer_range = 0.02;
  bool tied_embeddings = false;
  BiasRule qkv_bias, attention_out_bias, mlp_bias;
  bool qk_norm = false, qk_norm_whole = false;  // over each head of q and k, or over all of them
  RotaryRule rotary;
  // This key of the config says whether attention and MLP stand side by side. Empty: the MLP
  // follows the attention.
  std::string_view parallel_residual = {};
  // Attention and MLP stand side by side, and one norm is before both.
  bool shared_norm = false;
  // Keys of falcon say how q, k and v lie, and which norms there are.
  bool falcon_blocks = false;
  bool mpt_blocks = false;  // keys of mpt say what the attention is
  // The embedding is multiplied by the root of the hidden size.
  bool scaled_embedding = false;
  // Keys of the config multiply the embedding, the scores of attention and what a block adds, and
  // divide the logits.
  bool multipliers = false;
  // Scores of attention are divided by the root of this key's number. Empty: of the head's size.
  std::string_view score_root_key = {};
  double score_root = 0;
  // Logits are multiplied by this key's number.
  std::string_view logits_scale_key = {};
  double logits_scale = 1;
  // Scores and logits are capped softly at these keys' numbers; null and 0 are no cap. Without the
  // key the number beside it holds.
  std::string_view score_softcap_key = {}, logits_softcap_key = {};
  double score_softcap = 0, logits_softcap = 0;
  bool alibi = false;  // scores fall with the distance of the key; nothing is rotated
  WindowRule window = WindowRule::kNone;
  int64_t default_window = 4096;             // 0: none
  std::string_view window_pattern_key = {};  // of kPattern; empty: `window_pattern` always
  int64_t window_pattern = 0;
  std::span<const FixedKey> fixed = {};
  std::string_view embedding_width_key = {};  // must be the hidden size; empty: there is none
  // Keys of dropout. Empty: the family has none.
  std::string_view embedding_dropout = {}, residual_dropout = {};
  std::string_view attention_dropout = "attention_dropout";
  // Projections to the residual stream begin smaller by the root of twice the number of layers
  // (Radford et al. 2019, section 2.3).
  bool small_residual_init = false;
  FamilyNames names;
};

std::span<const Family> Families();
// Null when there is none of that name.
const Family* FindFamily(std::string_view name);
// "gpt2, llama, ...".
std::string FamilyList();

}  // namespace terrace
