// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/family.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace terrace {
namespace {

constexpr FamilyNames kGpt2Names = {
    .token_embedding = "transformer.wte",
    .position_embedding = "transformer.wpe",
    .final_norm = "transformer.ln_f",
    .layers = "transformer.h.",
    .attention_norm = "ln_1",
    .qkv = "attn.c_attn",
    .attention_out = "attn.c_proj",
    .mlp_norm = "ln_2",
    .mlp_up = "mlp.c_fc",
    .mlp_down = "mlp.c_proj",
};

constexpr FamilyNames kLlamaNames = {
    .token_embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .layers = "model.layers.",
    .attention_norm = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .attention_out = "self_attn.o_proj",
    .mlp_norm = "post_attention_layernorm",
    .mlp_gate = "mlp.gate_proj",
    .mlp_up = "mlp.up_proj",
    .mlp_down = "mlp.down_proj",
};

constexpr FamilyNames Starcoder2Names() {
  FamilyNames names = kLlamaNames;
  names.mlp_gate = "";
  names.mlp_up = "mlp.c_fc";
  names.mlp_down = "mlp.c_proj";
  return names;
}

constexpr BiasRule kAlways = {.otherwise = true};
constexpr BiasRule kAttentionBias = {.key = "attention_bias"};
constexpr BiasRule kUseBias = {.key = "use_bias", .otherwise = true};

constexpr Family kFamilies[] = {
    {.name = "gpt2",
     .norm = NormKind::kLayerNorm,
     .mlp = MlpKind::kGelu,
     .epsilon_key = "layer_norm_epsilon",
     .epsilon = 1e-5,
     .max_positions = 1024,
     .tied_embeddings = true,
     .qkv_bias = kAlways,
     .attention_out_bias = kAlways,
     .mlp_bias = kAlways,
     .embedding_dropout = "embd_pdrop",
     .residual_dropout = "resid_pdrop",
     .small_residual_init = true,
     .names = kGpt2Names},
    {.name = "llama",
     .max_positions = 2048,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .mlp_bias = {.key = "mlp_bias"},
     .names = kLlamaNames},
    {.name = "mistral",
     .kv_heads = 8,
     .max_positions = 131072,
     .window = WindowRule::kLayerKeys,
     .names = kLlamaNames},
    {.name = "qwen2",
     .kv_heads = 32,
     .max_positions = 32768,
     .qkv_bias = kAlways,
     .window = WindowRule::kSwitched,
     .names = kLlamaNames},
    {.name = "qwen3",
     .kv_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .qk_norm = true,
     .window = WindowRule::kSwitched,
     .names = kLlamaNames},
    {.name = "starcoder2",
     .norm = NormKind::kLayerNorm,
     .mlp = MlpKind::kGelu,
     .epsilon_key = "norm_epsilon",
     .epsilon = 1e-5,
     .kv_heads = 2,
     .max_positions = 4096,
     .initializer_range = 0.018042,
     .tied_embeddings = true,
     .qkv_bias = kUseBias,
     .attention_out_bias = kUseBias,
     .mlp_bias = kUseBias,
     .window = WindowRule::kKey,
     .default_window = 0,
     .embedding_dropout = "embedding_dropout",
     .residual_dropout = "residual_dropout",
     .names = Starcoder2Names()},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family* FindFamily(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& family) { return family.name == name; });
  return found == std::end(kFamilies) ? nullptr : found;
}

std::string FamilyList() {
  return absl::StrJoin(kFamilies, ", ",
                       [](std::string* out, const Family& family) { out->append(family.name); });
}

}  // namespace terrace
