// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text/json_text.h"
#include "coordinator/model/config_keys.h"
#include "coordinator/model/json_reader.h"
#include "coordinator/model/rope.h"

namespace terrace {
namespace {

// Limits far above any published model, far below what would overflow 64-bit byte counts.
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxPositions = 1 << 26;
constexpr int64_t kMaxHeadDim = 256;

// As in GPT2Config.attribute_map.
void AliasGpt2(JsonReader& json) {
  json.Alias("n_embd", "hidden_size");
  json.Alias("n_positions", "max_position_embeddings");
  json.Alias("n_head", "num_attention_heads");
  json.Alias("n_layer", "num_hidden_layers");
}

// All of these are x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
bool IsTanhGelu(std::string_view activation) {
  constexpr std::string_view kNames[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh",
                                         "gelu_fast", "gelu_accurate"};
  return std::find(std::begin(kNames), std::end(kNames), activation) != std::end(kNames);
}

void ReadGpt2(JsonReader& json, ModelConfig* config) {
  AliasGpt2(json);
  config->vocabulary = json.Int("vocab_size", 1, kMaxVocabulary, 50257);
  config->hidden = json.Int("n_embd", 1, kMaxWidth, 768);
  config->layers = json.Int("n_layer", 1, kMaxLayers, 12);
  config->heads = json.Int("n_head", 1, kMaxHeads, 12);
  config->kv_heads = config->heads;
  config->head_dim = config->hidden / config->heads;
  config->intermediate = json.Int("n_inner", 1, kMaxWidth, 4 * config->hidden);
  config->max_positions = json.Int("n_positions", 1, kMaxPositions, 1024);
  const int64_t context = json.Int("n_ctx", 1, kMaxPositions, config->max_positions);
  if (context != config->max_positions) {
    config->remarks.push_back(absl::StrCat("model.config: n_ctx: got ", context,
                                           ", which transformers does not read: there are ",
                                           config->max_positions, " positions (n_positions)"));
  }
  config->norm = NormKind::kLayerNorm;
  config->norm_epsilon = json.Real("layer_norm_epsilon", 0, 1, 1e-5);
  config->dropout = {.embedding = json.Real("embd_pdrop", 0, kMaxDropout, 0),
                     .residual = json.Real("resid_pdrop", 0, kMaxDropout, 0)};
  config->mlp = MlpKind::kGelu;
  config->learned_positions = true;
  config->qkv_bias = config->attention_out_bias = config->mlp_bias = true;
  config->tied_embeddings = json.Bool("tie_word_embeddings", true);
  config->fused_qkv = config->conv1d_weights = true;
  const std::string activation = json.String("activation_function", "gelu_new");
  if (!IsTanhGelu(activation)) {
    json.Problem("activation_function", ShownJson(activation),
                 "gelu_new or gelu_pytorch_tanh, which are the same");
  }
  if (!json.Bool("scale_attn_weights", true)) json.Problem("scale_attn_weights", "false", "true");
  if (json.Bool("scale_attn_by_inverse_layer_idx", false)) {
    json.Problem("scale_attn_by_inverse_layer_idx", "true", "false");
  }
}

// The window of the layers that have one; 0 for none. The classes' default holds where the key is
// left out; null is no window.
int64_t ReadWindow(JsonReader& json, const std::string& family) {
  constexpr int64_t kDefault = 4096;
  if (family == "llama") return 0;
  const bool on = family == "mistral" || json.Bool("use_sliding_window", false);
  const bool none = json.Contains("sliding_window") && !json.Has("sliding_window");
  const int64_t window = none ? 0 : json.Int("sliding_window", on ? 1 : 0, kMaxPositions, kDefault);
  return on ? window : 0;
}

void ReadWindows(JsonReader& json, ModelConfig* config) {
  const int64_t window = ReadWindow(json, config->family);
  config->window.assign(config->layers, window);
  if (config->family == "llama") return;  // layer_types is said to decide nothing
  const std::vector<std::string> types = json.Strings("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config->layers) {
    json.Problem("layer_types", absl::StrCat(types.size(), " entries"),
                 absl::StrCat(config->layers, " entries, one a layer"));
    return;
  }
  const bool is_mistral = config->family == "mistral";
  const int64_t first = is_mistral ? 0 : json.Int("max_window_layers", 0, kMaxLayers, 28);
  for (int64_t layer = 0; layer < config->layers; ++layer) {
    bool sliding = window > 0 && layer >= first;
    if (!types.empty()) {
      const std::string& type = types[layer];
      if (type != "full_attention" && type != "sliding_attention") {
        json.Problem("layer_types", ShownJson(type), "full_attention or sliding_attention");
        return;
      }
      sliding = type == "sliding_attention";
      if (sliding && window == 0) {
        json.Problem("layer_types", "sliding_attention without a window", "full_attention",
                     is_mistral ? "or set sliding_window"
                                : "or set use_sliding_window: true and sliding_window");
        return;
      }
    }
    config->window[layer] = sliding ? window : 0;
  }
}

// What the configuration classes have where a key is left out.
int64_t DefaultPositions(const std::string& family) {
  if (family == "llama") return 2048;
  return family == "mistral" ? 131072 : 32768;
}

// Null is as many as heads in every class; without the key each has its own.
int64_t ReadKvHeads(JsonReader& json, const ModelConfig& config) {
  int64_t otherwise = config.heads;
  if (!json.Contains("num_key_value_heads") && config.family != "llama")
    otherwise = config.family == "mistral" ? 8 : 32;
  return json.Int("num_key_value_heads", 1, kMaxHeads, otherwise);
}

// llama, mistral, qwen2, qwen3: one shape with four sets of defaults (those of the Hugging Face
// configuration classes).
void ReadLlamaLike(JsonReader& json, ModelConfig* config) {
  const std::string& family = config->family;
  config->vocabulary = json.Int("vocab_size", 1, kMaxVocabulary);
  config->hidden = json.Int("hidden_size", 1, kMaxWidth);
  config->layers = json.Int("num_hidden_layers", 1, kMaxLayers);
  config->heads = json.Int("num_attention_heads", 1, kMaxHeads);
  config->kv_heads = ReadKvHeads(json, *config);
  const int64_t default_head_dim = family == "qwen3" ? 128 : config->hidden / config->heads;
  config->head_dim = json.Int("head_dim", 1, kMaxHeadDim, default_head_dim);
  config->intermediate = json.Int("intermediate_size", 1, kMaxWidth);
  config->max_positions =
      json.Int("max_position_embeddings", 1, kMaxPositions, DefaultPositions(family));
  config->norm_epsilon = json.Real("rms_norm_eps", 0, 1, 1e-6);
  config->tied_embeddings = json.Bool("tie_word_embeddings", false);
  config->qk_norm = family == "qwen3";
  const bool attention_bias =
      (family == "llama" || family == "qwen3") && json.Bool("attention_bias", false);
  config->qkv_bias = family == "qwen2" || attention_bias;
  config->attention_out_bias = attention_bias;
  config->mlp_bias = family == "llama" && json.Bool("mlp_bias", false);
  const std::string activation = json.String("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    json.Problem("hidden_act", ShownJson(activation), "silu");
  }
  ReadWindows(json, config);
}

void CheckShape(JsonReader& json, const ModelConfig& config, int64_t sequence_length) {
  const bool gpt2 = config.family == "gpt2";
  if (config.hidden % config.heads != 0 && gpt2) {
    json.Problem("n_embd", absl::StrCat(config.hidden),
                 absl::StrCat("a multiple of n_head ", config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    json.Problem("num_key_value_heads", absl::StrCat(config.kv_heads),
                 absl::StrCat("a divisor of num_attention_heads ", config.heads));
  }
  if (config.head_dim % 2 != 0 || config.head_dim < 1 || config.head_dim > kMaxHeadDim) {
    json.Problem("head_dim", absl::StrCat(config.head_dim),
                 absl::StrCat("even, from 2 to ", kMaxHeadDim));
  }
  if (sequence_length > config.max_positions) {
    const char* key = gpt2 ? "n_positions" : "max_position_embeddings";
    json.Problem(key, absl::StrCat(config.max_positions),
                 absl::StrCat("at least data.sequence_length ", sequence_length),
                 "lower data.sequence_length or raise it here");
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json,
                                             int64_t sequence_length) {
  std::vector<std::string> repeated;
  const absl::Status checked = CheckJson(config_json, &repeated);
  const nlohmann::json json =
      checked.ok() ? nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false)
                   : nlohmann::json();
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.config: the text is not a JSON object",
                     checked.ok() ? "" : absl::StrCat(" (", checked.message(), ")"),
                     "; give a Hugging Face config.json"));
  }
  std::vector<std::string> problems;
  JsonReader reader(json, "", &problems);
  ModelConfig config;
  for (const std::string& key : repeated) {
    config.remarks.push_back(
        absl::StrCat("model.config: ", key, " stands twice; the last one counts, as in Python"));
  }
  config.family = reader.String("model_type", "");
  config.initializer_range = reader.Real("initializer_range", 0, 10, 0.02);
  if (config.family == "gpt2") {
    ReadGpt2(reader, &config);
    config.window.assign(config.layers, 0);
  } else if (config.family == "llama" || config.family == "mistral" || config.family == "qwen2" ||
             config.family == "qwen3") {
    ReadLlamaLike(reader, &config);
    if (problems.empty()) {
      config.rope = ReadRope(reader, {config.head_dim, config.max_positions, sequence_length},
                             &problems, &config.remarks);
    } else {
      for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters",
                              "partial_rotary_factor", "original_max_position_embeddings"}) {
        reader.Has(key);  // known, though nobody looks at them now
      }
    }
  } else {
    reader.Problem("model_type", config.family.empty() ? "nothing" : ShownJson(config.family),
                   "one of gpt2, llama, mistral, qwen2, qwen3",
                   "other architectures are not supported");
  }
  if (problems.empty()) CheckShape(reader, config, sequence_length);
  const bool known_family = !config.window.empty();
  if (known_family) JudgeConfigKeys(reader, config.family, &config.remarks);
  if (problems.empty()) return config;
  std::string text = absl::StrCat("model.config: ", absl::StrJoin(problems, "\nmodel.config: "));
  // A misspelt key is why another one is missing.
  for (const std::string& remark : config.remarks) absl::StrAppend(&text, "\n", remark);
  return absl::InvalidArgumentError(text);
}

}  // namespace terrace
