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

constexpr FamilyNames kGptNeoxNames = {
    .token_embedding = "gpt_neox.embed_in",
    .final_norm = "gpt_neox.final_layer_norm",
    .head = "embed_out",
    .layers = "gpt_neox.layers.",
    .attention_norm = "input_layernorm",
    .qkv = "attention.query_key_value",
    .attention_out = "attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .mlp_up = "mlp.dense_h_to_4h",
    .mlp_down = "mlp.dense_4h_to_h",
};

constexpr FamilyNames Phi3Names() {
  FamilyNames names = kLlamaNames;
  names.qkv = "self_attn.qkv_proj";
  names.mlp_gate = "mlp.gate_up_proj";
  return names;
}

constexpr FamilyNames Olmo2Names() {
  FamilyNames names = kLlamaNames;
  names.attention_norm = names.mlp_norm = "";
  names.attention_after_norm = "post_attention_layernorm";
  names.mlp_after_norm = "post_feedforward_layernorm";
  return names;
}

constexpr FamilyNames Gemma3Names() {
  FamilyNames names = Olmo2Names();
  names.attention_norm = "input_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  return names;
}

constexpr FamilyNames kBloomNames = {
    .token_embedding = "transformer.word_embeddings",
    .embedding_norm = "transformer.word_embeddings_layernorm",
    .final_norm = "transformer.ln_f",
    .layers = "transformer.h.",
    .attention_norm = "input_layernorm",
    .qkv = "self_attention.query_key_value",
    .attention_out = "self_attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .mlp_up = "mlp.dense_h_to_4h",
    .mlp_down = "mlp.dense_4h_to_h",
};

constexpr FamilyNames kMptNames = {
    .token_embedding = "transformer.wte",
    .final_norm = "transformer.norm_f",
    .layers = "transformer.blocks.",
    .attention_norm = "norm_1",
    .qkv = "attn.Wqkv",
    .attention_out = "attn.out_proj",
    .mlp_norm = "norm_2",
    .mlp_up = "ffn.up_proj",
    .mlp_down = "ffn.down_proj",
};

constexpr FamilyNames kFalconNames = {
    .token_embedding = "transformer.word_embeddings",
    .final_norm = "transformer.ln_f",
    .layers = "transformer.h.",
    .attention_norm = "input_layernorm",
    .qkv = "self_attention.query_key_value",
    .attention_out = "self_attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .mlp_up = "mlp.dense_h_to_4h",
    .mlp_down = "mlp.dense_4h_to_h",
    .two_norms = {"ln_attn", "ln_mlp"},
};

constexpr FamilyNames CohereNames() {
  FamilyNames names = kLlamaNames;
  names.mlp_norm = "";
  return names;
}

constexpr FamilyNames kOptNames = {
    .token_embedding = "model.decoder.embed_tokens",
    .position_embedding = "model.decoder.embed_positions",
    .final_norm = "model.decoder.final_layer_norm",
    .layers = "model.decoder.layers.",
    .attention_norm = "self_attn_layer_norm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .attention_out = "self_attn.out_proj",
    .mlp_norm = "final_layer_norm",
    .mlp_up = "fc1",
    .mlp_down = "fc2",
};

constexpr BiasRule kAlways = {.otherwise = true};
constexpr BiasRule kAttentionBias = {.key = "attention_bias"};
constexpr BiasRule kAttentionBiasOrAlways = {.key = "attention_bias", .otherwise = true};
constexpr BiasRule kEnableBias = {.key = "enable_bias", .otherwise = true};
constexpr BiasRule kUseBias = {.key = "use_bias", .otherwise = true};

using Names = std::pair<std::string_view, std::string_view>;
constexpr Names kGpt2Aliases[] = {{"n_embd", "hidden_size"},
                                  {"n_positions", "max_position_embeddings"},
                                  {"n_head", "num_attention_heads"},
                                  {"n_layer", "num_hidden_layers"}};
constexpr Names kFalconAliases[] = {{"hidden_size", "n_embed"}};
constexpr Names kBloomAliases[] = {{"hidden_size", "n_embed"},
                                   {"num_attention_heads", "n_head"},
                                   {"num_hidden_layers", "n_layer"}};
constexpr Names kMptAliases[] = {{"hidden_size", "d_model"},
                                 {"num_attention_heads", "n_heads"},
                                 {"num_hidden_layers", "n_layers"}};

constexpr FixedKey kOptFixed[] = {
    {"do_layer_norm_before", true, "norms behind the residual sums are not supported"},
    {"_remove_final_layer_norm", false, "a model without a final norm is not supported"},
    {"layer_norm_elementwise_affine", true, "norms without weights are not supported"},
};

constexpr FixedKey kBloomFixed[] = {
    {"apply_residual_connection_post_layernorm", false, "blocks are added to what entered them"},
    {"slow_but_exact", false, "with pretraining_tp it leaves biases out"},
};

constexpr FixedKey kMptFixed[] = {
    {"no_bias", true, "projections of mpt have no bias in transformers"},
};

constexpr FixedKey kFalconFixed[] = {
    {"alibi", false, "positions by ALiBi are not supported"},
};

constexpr FixedKey kCohereFixed[] = {
    {"use_qk_norm", false, "norms of single heads are not supported"},
};

constexpr RotaryRule kGemma3Rotary = {.theta = 1e6,
                                      .by_layer_type = true,
                                      .local_theta_key = "rope_local_base_freq",
                                      .local_theta = 1e4};
constexpr RotaryRule kOlmo3Rotary = {.theta = 5e5, .by_layer_type = true, .local_theta = 5e5};
constexpr RotaryRule kSmollm3Rotary = {.theta = 2e6,
                                       .unrotated_key = "no_rope_layers",
                                       .unrotated_interval_key = "no_rope_layer_interval"};

constexpr Family kFamilies[] = {
    {.name = "gpt2",
     .norm = NormKind::kLayerNorm,
     .mlp = MlpKind::kPlain,
     .activation = ActivationKind::kGeluTanh,
     .activation_key = "activation_function",
     .qkv = QkvKind::kFused,
     .epsilon_key = "layer_norm_epsilon",
     .epsilon = 1e-5,
     .max_positions = 1024,
     .positions_key = "n_positions",
     .aliases = kGpt2Aliases,
     .tied_embeddings = true,
     .qkv_bias = kAlways,
     .attention_out_bias = kAlways,
     .mlp_bias = kAlways,
     .embedding_dropout = "embd_pdrop",
     .residual_dropout = "resid_pdrop",
     .attention_dropout = "attn_pdrop",
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
     .mlp = MlpKind::kPlain,
     .activation = ActivationKind::kGeluTanh,
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
    {.name = "gpt_neox",
     .norm = NormKind::kLayerNorm,
     .mlp = MlpKind::kPlain,
     .activation = ActivationKind::kGelu,
     .qkv = QkvKind::kByHead,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .max_positions = 2048,
     .grouped_queries = false,
     .head_dim_key = false,
     .qkv_bias = kAttentionBiasOrAlways,
     .attention_out_bias = kAttentionBiasOrAlways,
     .mlp_bias = kAlways,
     .rotary = {.part = 0.25,
                .part_key = "rotary_pct",
                .theta_key = "rotary_emb_base",
                .whole_only = false},
     .parallel_residual = "use_parallel_residual",
     .embedding_dropout = "hidden_dropout",
     .residual_dropout = "hidden_dropout",
     .names = kGptNeoxNames},
    {.name = "gemma",
     .norm_unit_offset = true,
     .activation = ActivationKind::kGeluTanh,
     .gelu_is_tanh = true,
     .kv_heads = 16,
     .head_dim = 256,
     .max_positions = 8192,
     .pad_token = 0,
     .tied_embeddings = true,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .scaled_embedding = true,
     .names = kLlamaNames},
    {.name = "stablelm",
     .norm = NormKind::kLayerNorm,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .kv_heads = 32,
     .max_positions = 4096,
     .head_dim_key = false,
     .qkv_bias = {.key = "use_qkv_bias"},
     .rotary = {.part = 0.25, .whole_only = false},
     .names = kLlamaNames},
    {.name = "phi3",
     .qkv = QkvKind::kFused,
     .fused_gate_up = true,
     .epsilon = 1e-5,
     .max_positions = 4096,
     .pad_token = 32000,
     .rotary = {.whole_only = false, .longrope_only = true, .trained = 4096},
     .window = WindowRule::kKey,
     .default_window = 0,
     .residual_dropout = "resid_pdrop",
     .names = Phi3Names()},
    {.name = "olmo2",
     .epsilon = 1e-5,
     .max_positions = 2048,
     .pad_token = 1,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .qk_norm = true,
     .qk_norm_whole = true,
     .names = Olmo2Names()},
    {.name = "granite",
     .max_positions = 2048,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .mlp_bias = {.key = "mlp_bias"},
     .multipliers = true,
     .names = kLlamaNames},
    {.name = "opt",
     .norm = NormKind::kLayerNorm,
     .mlp = MlpKind::kPlain,
     .activation = ActivationKind::kRelu,
     .activation_key = "activation_function",
     .epsilon_key = "",
     .epsilon = 1e-5,
     .max_positions = 2048,
     .pad_token = 1,
     .position_rows_before = 2,
     .grouped_queries = false,
     .head_dim_key = false,
     .intermediate_key = "ffn_dim",
     .initializer_key = "init_std",
     .tied_embeddings = true,
     .qkv_bias = kEnableBias,
     .attention_out_bias = kEnableBias,
     .mlp_bias = kEnableBias,
     .fixed = kOptFixed,
     .embedding_width_key = "word_embed_proj_dim",
     .residual_dropout = "dropout",
     .names = kOptNames},
    {.name = "gemma3_text",
     .norm_unit_offset = true,
     .activation = ActivationKind::kGeluTanh,
     .activation_key = "hidden_activation",
     .kv_heads = 4,
     .head_dim = 256,
     .max_positions = 131072,
     .vocabulary = 262208,
     .hidden = 2304,
     .layers = 26,
     .heads = 8,
     .intermediate = 9216,
     .pad_token = 0,
     .tied_embeddings = true,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .qk_norm = true,
     .rotary = kGemma3Rotary,
     .scaled_embedding = true,
     .score_root_key = "query_pre_attn_scalar",
     .score_root = 256,
     .logits_softcap_key = "final_logit_softcapping",
     .window = WindowRule::kPattern,
     .window_pattern_key = "sliding_window_pattern",
     .window_pattern = 6,
     .names = Gemma3Names()},
    {.name = "falcon",
     .norm = NormKind::kLayerNorm,
     .mlp = MlpKind::kPlain,
     .activation = ActivationKind::kGelu,
     .activation_key = "activation",
     .qkv = QkvKind::kByHead,
     .epsilon_key = "layer_norm_epsilon",
     .epsilon = 1e-5,
     .max_positions = 2048,
     .aliases = kFalconAliases,
     .intermediate_times = 4,
     .grouped_queries = false,
     .head_dim_key = false,
     .intermediate_key = "ffn_hidden_size",
     .tied_embeddings = true,
     .qkv_bias = {.key = "bias"},
     .attention_out_bias = {.key = "bias"},
     .mlp_bias = {.key = "bias"},
     .falcon_blocks = true,
     .fixed = kFalconFixed,
     .attention_dropout = {},
     .names = kFalconNames},
    {.name = "olmo3",
     .epsilon = 1e-5,
     .max_positions = 2048,
     .pad_token = 1,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .qk_norm = true,
     .qk_norm_whole = true,
     .rotary = kOlmo3Rotary,
     .window = WindowRule::kPattern,
     .window_pattern = 4,
     .names = Olmo2Names()},
    {.name = "smollm3",
     .kv_heads = 4,
     .max_positions = 32768,
     .pad_token = 128004,
     .tied_embeddings = true,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .mlp_bias = {.key = "mlp_bias"},
     .rotary = kSmollm3Rotary,
     .window = WindowRule::kUnrotated,
     .default_window = 0,
     .names = kLlamaNames},
    {.name = "cohere",
     .norm = NormKind::kLayerNorm,
     .norm_bias = false,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .max_positions = 8192,
     .pad_token = 0,
     .tied_embeddings = true,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .rotary = {.theta = 5e5, .interleaved = true},
     .shared_norm = true,
     .logits_scale_key = "logit_scale",
     .logits_scale = 0.0625,
     .fixed = kCohereFixed,
     .names = CohereNames()},
    {.name = "gemma2",
     .norm_unit_offset = true,
     .activation = ActivationKind::kGeluTanh,
     .activation_key = "hidden_activation",
     .kv_heads = 4,
     .head_dim = 256,
     .max_positions = 8192,
     .vocabulary = 256000,
     .hidden = 2304,
     .layers = 26,
     .heads = 8,
     .intermediate = 9216,
     .pad_token = 0,
     .tied_embeddings = true,
     .qkv_bias = kAttentionBias,
     .attention_out_bias = kAttentionBias,
     .scaled_embedding = true,
     .score_root_key = "query_pre_attn_scalar",
     .score_root = 256,
     .score_softcap_key = "attn_logit_softcapping",
     .logits_softcap_key = "final_logit_softcapping",
     .score_softcap = 50,
     .logits_softcap = 30,
     .window = WindowRule::kPattern,
     .window_pattern = 2,
     .names = Gemma3Names()},
    {.name = "bloom",
     .norm = NormKind::kLayerNorm,
     .mlp = MlpKind::kPlain,
     .activation = ActivationKind::kGeluTanh,
     .activation_key = "",
     .qkv = QkvKind::kByHead,
     .epsilon_key = "layer_norm_epsilon",
     .epsilon = 1e-5,
     .aliases = kBloomAliases,
     .vocabulary = 250880,
     .hidden = 64,
     .layers = 2,
     .heads = 8,
     .intermediate_times = 4,
     .grouped_queries = false,
     .head_dim_key = false,
     .intermediate_key = "",
     .tied_embeddings = true,
     .qkv_bias = kAlways,
     .attention_out_bias = kAlways,
     .mlp_bias = kAlways,
     .alibi = true,
     .fixed = kBloomFixed,
     .residual_dropout = "hidden_dropout",
     .names = kBloomNames},
    {.name = "mpt",
     .norm = NormKind::kLayerNorm,
     .norm_bias = false,
     .mlp = MlpKind::kPlain,
     .activation = ActivationKind::kGelu,
     .activation_key = "",
     .qkv = QkvKind::kFused,
     .epsilon_key = "layer_norm_epsilon",
     .epsilon = 1e-5,
     .max_positions = 2048,
     .positions_key = "max_seq_len",
     .aliases = kMptAliases,
     .vocabulary = 50368,
     .hidden = 2048,
     .layers = 24,
     .heads = 16,
     .intermediate_times = 4,
     .grouped_queries = false,
     .head_dim_key = false,
     .intermediate_key = "",
     .tied_embeddings = true,
     .mpt_blocks = true,
     .alibi = true,
     .fixed = kMptFixed,
     .attention_dropout = {},
     .names = kMptNames},
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
