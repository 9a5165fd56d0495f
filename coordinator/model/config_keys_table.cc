// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/config_keys.h"

namespace terrace {
namespace {

constexpr std::string_view kOtherHead = "belongs to a head that is not the language model's";
constexpr std::string_view kGeneration = "belongs to generation";
constexpr std::string_view kRecord = "says how the file was written";
constexpr std::string_view kKernel = "chooses among kernels that compute the same";
constexpr std::string_view kIds = "goes with the tokenizer and the export";
constexpr std::string_view kDropped =
    "which is not applied: no attention weight is dropped; set it to 0";

}  // namespace

std::string_view PaddingNote() {
  return "whose embedding transformers starts at zero and gives no gradient as an input; here it is "
         "trained like any other";
}

// The first row of a key that is for the family counts.
const std::vector<ConfigKey>& ConfigKeys() {
  using enum KeyFate;
  constexpr std::string_view kLlamaLike =
      "llama mistral qwen2 qwen3 starcoder2 gemma stablelm phi3 olmo2 granite opt"
      " gemma3_text";  // with a padding token's embedding
  constexpr std::string_view kRotary =
      "llama mistral qwen2 qwen3 starcoder2 gpt_neox gemma stablelm phi3 olmo2 granite"
      " gemma3_text";
  static const auto* keys = new std::vector<ConfigKey>{
      // Whose value decides the numbers or the model.
      {"attn_pdrop", "gpt2", kRemark, kDropped},
      {"attention_dropout", kRotary, kRemark, kDropped},
      {"attention_dropout", "opt", kRemark, kDropped},
      {"layerdrop", "opt", kRemark, "which is not applied: no layer is left out; set it to 0"},
      {"hidden_dropout", "stablelm", kRemark,
       "which is dropped of the MLP's result alone in transformers; here it is not dropped, and "
       "model.dropout.residual drops of what both blocks add"},
      {"embd_pdrop", "phi3", kRemark, "which phi3 does not apply: nothing is dropped of embeddings"},
      {"pad_token_id", kLlamaLike, kRemark,
       PaddingNote(), /*even_if_empty=*/true},
      {"pad_token_id", "gpt2", kNoEffect, "gpt2's embedding trains every row"},
      {"pad_token_id", "gpt_neox", kNoEffect, "the embedding trains every row"},
      {"quantization_config", "", kRemark,
       "which is not applied: weights are trained as train.precision and formats say"},
      {"auto_map", "", kRemark,
       "which is not run: the model is what its model_type means in transformers"},
      {"add_cross_attention", "gpt2", kRefuse, "false; cross-attention is not supported"},
      {"pruned_heads", "gpt2", kRefuse, "empty; heads are not pruned"},
      {"torchscript", "", kRefuse,
       "false; it unties the LM head from the embedding in transformers"},
      {"per_layer_config", "", kRefuse, "left out; layers that differ are not supported"},
      {"is_encoder_decoder", "", kRemark, "which a decoder-only model does not read"},

      {"use_bidirectional_attention", "gemma gemma3_text", kRefuse,
       "left out or false; a token sees those before it"},
      {"final_logit_softcapping", "gemma3_text", kRefuse, "left out or null; logits are not capped"},
      {"attn_logit_softcapping", "gemma3_text", kRemark,
       "which gemma3_text does not apply: scores are not capped"},
      {"qk_layernorm", "stablelm", kRefuse, "false; norms of single heads are not supported"},
      {"use_parallel_residual", "stablelm", kRefuse,
       "false; attention and MLP of stablelm would share a norm, which is not supported"},
      {"head_dim", "gpt_neox stablelm opt", kRefuse,
       "left out; a head of the family has hidden_size / num_attention_heads elements"},

      // Of another family's class. The second part of the sentence follows from `families`.
      {"attention_bias", "mistral phi3", kRemark, "which only other families read: there is no bias"},
      {"attention_bias", "qwen2", kRemark,
       "which qwen2 does not read: query, key and value have a bias, the output has none",
       /*even_if_empty=*/true},
      {"attention_bias", "gpt2", kRemark, "which gpt2 does not read: all projections have a bias",
       /*even_if_empty=*/true},
      {"attention_bias", "starcoder2", kRemark,
       "which starcoder2 does not read: use_bias decides", /*even_if_empty=*/true},
      {"mlp_bias", "starcoder2", kRemark, "which starcoder2 does not read: use_bias decides",
       /*even_if_empty=*/true},
      {"layer_types", "starcoder2 phi3", kRemark,
       "which the family does not read: all layers have the window"},
      {"rms_norm_eps", "starcoder2", kRemark,
       "which starcoder2 does not read; is norm_epsilon meant?"},
      {"mlp_bias", "mistral qwen2 qwen3 phi3 olmo2 gemma3_text", kRemark,
       "which the family does not read: there is no bias"},
      {"hidden_act", "gemma3_text", kRemark,
       "which gemma3_text does not read; is hidden_activation meant?"},
      {"mlp_bias", "gpt2", kRemark, "which gpt2 does not read: all projections have a bias",
       /*even_if_empty=*/true},
      {"hidden_activation", "gemma", kRemark,
       "which transformers 5 does not read: hidden_act decides, whose gelu is gelu_pytorch_tanh"},
      {"rope_theta", "gpt_neox", kRemark,
       "which gpt_neox does not read; is rotary_emb_base meant?"},
      {"partial_rotary_factor", "gpt_neox", kRemark,
       "which gpt_neox does not read; is rotary_pct meant?"},
      {"rms_norm_eps", "gpt_neox stablelm", kRemark,
       "which the family does not read; is layer_norm_eps meant?"},
      {"mlp_bias", "gpt_neox", kRemark, "which gpt_neox does not read: the MLP has biases",
       /*even_if_empty=*/true},
      {"mlp_bias", "gemma stablelm", kRemark, "which the family does not read: there is no bias"},
      {"attention_bias", "stablelm", kRemark,
       "which stablelm does not read; is use_qkv_bias meant?"},
      {"sliding_window", "gpt_neox gemma stablelm olmo2 granite", kRemark,
       "which the family does not read: attention is full"},
      {"layer_types", "gpt_neox gemma stablelm olmo2 granite", kRemark,
       "which the family does not read: attention is full"},
      {"sliding_window", "llama gpt2", kRemark,
       "which the family does not read: attention is full"},
      {"layer_types", "llama gpt2", kRemark,
       "which the family does not read: attention is full"},
      {"use_sliding_window", "llama gpt2 mistral starcoder2 phi3 gemma3_text", kRemark,
       "which only qwen2 and qwen3 read",
       /*even_if_empty=*/true},
      {"max_window_layers", "llama gpt2 mistral starcoder2 phi3 gemma3_text", kRemark,
       "which only qwen2 and qwen3 read"},
      {"_sliding_window_pattern", "gemma3_text", kNoEffect,
       "written beside layer_types, and not read"},
      {"num_key_value_heads", "gpt2 gpt_neox opt", kRemark,
       "which the family does not read: there are as many as heads"},
      {"intermediate_size", "opt", kRemark, "which opt does not read; is ffn_dim meant?"},
      {"initializer_range", "opt", kRemark, "which opt does not read; is init_std meant?"},
      {"intermediate_size", "gpt2", kRemark, "which gpt2 does not read; is n_inner meant?"},
      {"head_dim", "gpt2", kRemark, "which gpt2 does not read: it is n_embd / n_head"},
      {"hidden_act", "gpt2 opt", kRemark,
       "which the family does not read; is activation_function meant?"},
      {"rms_norm_eps", "gpt2", kRemark, "which gpt2 does not read; is layer_norm_epsilon meant?"},
      {"rope_theta", "gpt2 opt", kRemark,
       "which the family does not read: positions are learned"},
      {"rope_scaling", "gpt2 opt", kRemark,
       "which the family does not read: positions are learned"},
      {"rope_parameters", "gpt2 opt", kRemark,
       "which the family does not read: positions are learned"},

      {"original_max_position_embeddings", "phi3", kNoEffect, "belongs to scalings of RoPE"},
      {"architectures", "", kNoEffect, "compared with the family where it names another"},
      {"reorder_and_upcast_attn", "gpt2", kNoEffect, "sums of attention are fp32"},
      {"pretraining_tp", "", kNoEffect, "the same products in parts"},
      {"chunk_size_feed_forward", "", kNoEffect, "the same products in parts"},
      {"torch_dtype", "", kNoEffect, "train.precision and formats decide"},
      {"dtype", "", kNoEffect, "train.precision and formats decide"},
      {"use_bfloat16", "", kNoEffect, "train.precision and formats decide"},
      {"gradient_checkpointing", "", kNoEffect, "layout.recompute decides, with the same numbers"},
      {"is_decoder", "", kNoEffect, "the families are decoders"},
      {"cross_attention_hidden_size", "", kNoEffect, "there is no cross-attention"},
      {"tie_encoder_decoder", "", kNoEffect, "there is no encoder"},
      {"add_cross_attention", kRotary, kNoEffect, "the family has none"},
      {"add_cross_attention", "opt", kNoEffect, "the family has none"},
      {"activation_dropout", "opt", kNoEffect, "the family does not apply it"},
      {"tf_legacy_loss", "", kNoEffect, "belongs to TensorFlow"},
      {"attn_implementation", "", kNoEffect, kKernel},
      {"_attn_implementation", "", kNoEffect, kKernel},
      {"_attn_implementation_internal", "", kNoEffect, kKernel},
      {"_attn_implementation_autoset", "", kNoEffect, kKernel},
      {"_flash_attn_2_enabled", "", kNoEffect, kKernel},
      {"experts_implementation", "", kNoEffect, kKernel},
      {"_experts_implementation_internal", "", kNoEffect, kKernel},
      {"transformers_version", "", kNoEffect, kRecord},
      {"_name_or_path", "", kNoEffect, kRecord},
      {"name_or_path", "", kNoEffect, kRecord},
      {"_commit_hash", "", kNoEffect, kRecord},
      {"bos_token_id", "", kNoEffect, kIds},
      {"eos_token_id", "", kNoEffect, kIds},
      {"sep_token_id", "", kNoEffect, kIds},
      {"decoder_start_token_id", "", kNoEffect, kIds},
      {"tokenizer_class", "", kNoEffect, kIds},
      {"prefix", "", kNoEffect, kIds},
      {"return_dict", "", kNoEffect, "chooses how Python is answered"},
      {"output_hidden_states", "", kNoEffect, "chooses how Python is answered"},
      {"output_attentions", "", kNoEffect, "chooses how Python is answered"},

      {"summary_type", "gpt2", kNoEffect, kOtherHead},
      {"summary_use_proj", "gpt2", kNoEffect, kOtherHead},
      {"summary_activation", "gpt2", kNoEffect, kOtherHead},
      {"summary_proj_to_labels", "gpt2", kNoEffect, kOtherHead},
      {"summary_first_dropout", "gpt2", kNoEffect, kOtherHead},
      {"classifier_dropout", "", kNoEffect, kOtherHead},
      {"id2label", "", kNoEffect, kOtherHead},
      {"label2id", "", kNoEffect, kOtherHead},
      {"num_labels", "", kNoEffect, kOtherHead},
      {"problem_type", "", kNoEffect, kOtherHead},
      {"finetuning_task", "", kNoEffect, kOtherHead},
      {"task_specific_params", "", kNoEffect, kGeneration},

      {"use_cache", "", kNoEffect, kGeneration},
      {"max_length", "", kNoEffect, kGeneration},
      {"min_length", "", kNoEffect, kGeneration},
      {"do_sample", "", kNoEffect, kGeneration},
      {"early_stopping", "", kNoEffect, kGeneration},
      {"num_beams", "", kNoEffect, kGeneration},
      {"num_beam_groups", "", kNoEffect, kGeneration},
      {"diversity_penalty", "", kNoEffect, kGeneration},
      {"temperature", "", kNoEffect, kGeneration},
      {"cache_implementation", "", kNoEffect, kGeneration},
      {"top_k", "", kNoEffect, kGeneration},
      {"top_p", "", kNoEffect, kGeneration},
      {"typical_p", "", kNoEffect, kGeneration},
      {"epsilon_cutoff", "", kNoEffect, kGeneration},
      {"eta_cutoff", "", kNoEffect, kGeneration},
      {"repetition_penalty", "", kNoEffect, kGeneration},
      {"encoder_repetition_penalty", "", kNoEffect, kGeneration},
      {"length_penalty", "", kNoEffect, kGeneration},
      {"no_repeat_ngram_size", "", kNoEffect, kGeneration},
      {"encoder_no_repeat_ngram_size", "", kNoEffect, kGeneration},
      {"bad_words_ids", "", kNoEffect, kGeneration},
      {"num_return_sequences", "", kNoEffect, kGeneration},
      {"output_scores", "", kNoEffect, kGeneration},
      {"return_dict_in_generate", "", kNoEffect, kGeneration},
      {"forced_bos_token_id", "", kNoEffect, kGeneration},
      {"forced_eos_token_id", "", kNoEffect, kGeneration},
      {"remove_invalid_values", "", kNoEffect, kGeneration},
      {"exponential_decay_length_penalty", "", kNoEffect, kGeneration},
      {"suppress_tokens", "", kNoEffect, kGeneration},
      {"begin_suppress_tokens", "", kNoEffect, kGeneration},
      {"num_assistant_tokens", "", kNoEffect, kGeneration},
      {"num_assistant_tokens_schedule", "", kNoEffect, kGeneration},
      {"assistant_confidence_threshold", "", kNoEffect, kGeneration},
      {"assistant_lookbehind", "", kNoEffect, kGeneration},
      {"target_lookbehind", "", kNoEffect, kGeneration},
      {"generation_config", "", kNoEffect, kGeneration},
  };
  return *keys;
}

}  // namespace terrace
