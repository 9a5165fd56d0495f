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

// The first row of a key that is for the family counts.
const std::vector<ConfigKey>& ConfigKeys() {
  using enum KeyFate;
  constexpr std::string_view kLlamaLike = "llama mistral qwen2 qwen3 starcoder2";
  static const auto* keys = new std::vector<ConfigKey>{
      // Whose value decides the numbers or the model.
      {"attn_pdrop", "gpt2", kRemark, kDropped},
      {"attention_dropout", kLlamaLike, kRemark, kDropped},
      {"pad_token_id", kLlamaLike, kRemark,
       "whose embedding transformers starts at zero and gives no gradient as an input; here it is "
       "trained like any other",
       /*even_if_empty=*/true},
      {"pad_token_id", "gpt2", kNoEffect, "gpt2's embedding trains every row"},
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

      // Of another family's class. The second part of the sentence follows from `families`.
      {"attention_bias", "mistral", kRemark, "which only llama and qwen3 read: there is no bias"},
      {"attention_bias", "qwen2", kRemark,
       "which qwen2 does not read: query, key and value have a bias, the output has none",
       /*even_if_empty=*/true},
      {"attention_bias", "gpt2", kRemark, "which gpt2 does not read: all projections have a bias",
       /*even_if_empty=*/true},
      {"attention_bias", "starcoder2", kRemark,
       "which starcoder2 does not read: use_bias decides", /*even_if_empty=*/true},
      {"mlp_bias", "starcoder2", kRemark, "which starcoder2 does not read: use_bias decides",
       /*even_if_empty=*/true},
      {"layer_types", "starcoder2", kRemark,
       "which starcoder2 does not read: all layers have the window"},
      {"rms_norm_eps", "starcoder2", kRemark,
       "which starcoder2 does not read; is norm_epsilon meant?"},
      {"mlp_bias", "mistral qwen2 qwen3", kRemark, "which only llama reads: there is no bias"},
      {"mlp_bias", "gpt2", kRemark, "which gpt2 does not read: all projections have a bias",
       /*even_if_empty=*/true},
      {"sliding_window", "llama gpt2", kRemark,
       "which only mistral, qwen2, qwen3 and starcoder2 read: attention is full"},
      {"layer_types", "llama gpt2", kRemark,
       "which only mistral, qwen2 and qwen3 read: attention is full"},
      {"use_sliding_window", "llama gpt2 mistral starcoder2", kRemark,
       "which only qwen2 and qwen3 read",
       /*even_if_empty=*/true},
      {"max_window_layers", "llama gpt2 mistral starcoder2", kRemark,
       "which only qwen2 and qwen3 read"},
      {"num_key_value_heads", "gpt2", kRemark,
       "which gpt2 does not read: there are as many as heads"},
      {"intermediate_size", "gpt2", kRemark, "which gpt2 does not read; is n_inner meant?"},
      {"head_dim", "gpt2", kRemark, "which gpt2 does not read: it is n_embd / n_head"},
      {"hidden_act", "gpt2", kRemark, "which gpt2 does not read; is activation_function meant?"},
      {"rms_norm_eps", "gpt2", kRemark, "which gpt2 does not read; is layer_norm_epsilon meant?"},
      {"rope_theta", "gpt2", kRemark, "which gpt2 does not read: positions are learned"},
      {"rope_scaling", "gpt2", kRemark, "which gpt2 does not read: positions are learned"},
      {"rope_parameters", "gpt2", kRemark, "which gpt2 does not read: positions are learned"},

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
      {"add_cross_attention", kLlamaLike, kNoEffect, "the family has none"},
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
