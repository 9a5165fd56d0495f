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
};

// Names of modules without their endings. Empty: the family has no such module.
struct FamilyNames {
  std::string_view token_embedding, position_embedding, final_norm;
  std::string_view head = "lm_head";  // of one that is not tied
  std::string_view layers;            // before the layer's number
  std::string_view attention_norm, qkv, q, k, v, q_norm, k_norm, attention_out;
  std::string_view mlp_norm, mlp_gate, mlp_up, mlp_down;
};

struct Family {
  std::string_view name;  // model_type
  NormKind norm = NormKind::kRmsNorm;
  bool norm_unit_offset = false;
  bool norm_after = false;  // norms of what attention and MLP give, not of what they read
  MlpKind mlp = MlpKind::kGated;
  ActivationKind activation = ActivationKind::kSilu;
  std::string_view activation_key = "hidden_act";
  bool gelu_is_tanh = false;  // "gelu" means the tanh form
  QkvKind qkv = QkvKind::kApart;
  bool fused_gate_up = false;                     // mlp_gate names one tensor of both
  std::string_view epsilon_key = "rms_norm_eps";  // empty: `epsilon` always
  double epsilon = 1e-6;
  // What the configuration class has where a key is left out. Zero: as many key heads as heads, a
  // head of hidden / heads elements.
  int64_t kv_heads = 0, head_dim = 0, max_positions = 0;
  int64_t position_rows_before = 0;  // of the table of learned positions, before the first's row
  bool grouped_queries = true;  // else there are as many key heads as heads, and no key for them
  bool head_dim_key = true;     // else a head has hidden / heads elements
  std::string_view intermediate_key = "intermediate_size";
  std::string_view initializer_key = "initializer_range";
  double initializer_range = 0.02;
  bool tied_embeddings = false;
  BiasRule qkv_bias, attention_out_bias, mlp_bias;
  bool qk_norm = false, qk_norm_whole = false;  // over each head of q and k, or over all of them
  RotaryRule rotary;
  // This key of the config says whether attention and MLP stand side by side. Empty: the MLP
  // follows the attention.
  std::string_view parallel_residual = {};
  // The embedding is multiplied by the root of the hidden size.
  bool scaled_embedding = false;
  // Keys of the config multiply the embedding, the scores of attention and what a block adds, and
  // divide the logits.
  bool multipliers = false;
  WindowRule window = WindowRule::kNone;
  int64_t default_window = 4096;  // 0: none
  std::span<const FixedKey> fixed = {};
  std::string_view embedding_width_key = {};  // must be the hidden size; empty: there is none
  // Keys of dropout. Empty: the family has none.
  std::string_view embedding_dropout = {}, residual_dropout = {};
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
