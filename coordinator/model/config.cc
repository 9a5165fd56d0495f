// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "base/text/json_text.h"
#include "coordinator/model/config_keys.h"
#include "coordinator/model/family.h"
#include "coordinator/model/family_keys.h"
#include "coordinator/model/json_reader.h"
#include "coordinator/model/rope.h"

namespace terrace {
namespace {

// Limits far above any published model, far below what would overflow 64-bit byte counts.
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxPositions = 1 << 26;
constexpr int64_t kMaxHeadDim = 256;

// As ACT2FN of transformers has them. Those of kGeluTanh are all
// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
constexpr std::pair<std::string_view, ActivationKind> kActivations[] = {
    {"gelu_new", ActivationKind::kGeluTanh},
    {"gelu_pytorch_tanh", ActivationKind::kGeluTanh},
    {"gelu_python_tanh", ActivationKind::kGeluTanh},
    {"gelu_fast", ActivationKind::kGeluTanh},
    {"gelu_accurate", ActivationKind::kGeluTanh},
    {"gelu", ActivationKind::kGelu},
    {"gelu_python", ActivationKind::kGelu},
    {"relu", ActivationKind::kRelu},
    {"silu", ActivationKind::kSilu},
    {"swish", ActivationKind::kSilu}};

ActivationKind ReadActivation(JsonReader& json, const Family& family) {
  const std::string_view key = family.activation_key;
  if (key.empty() || !json.Has(key)) return family.activation;
  const std::string name = json.String(key, "");
  if (name == "gelu" && family.gelu_is_tanh) return ActivationKind::kGeluTanh;
  for (const auto& [known, activation] : kActivations) {
    if (name == known) return activation;
  }
  json.Problem(key, ShownJson(name), "one of silu, gelu, gelu_new, gelu_pytorch_tanh, relu",
               "other activations are not supported");
  return family.activation;
}

// As GraniteConfig names them, and what other rows say.
void ReadMultipliers(JsonReader& json, const Family& family, ModelConfig* config) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  const auto read = [&](std::string_view key, double otherwise) {
    return json.Real(key, kLeast, kMost, otherwise);
  };
  if (family.multipliers) {
    config->embedding_scale = read("embedding_multiplier", 1);
    config->attention_scale = read("attention_multiplier", 1);
    config->residual_scale = read("residual_multiplier", 1);
    config->logits_scale = 1 / read("logits_scaling", 1);
  }
  if (family.scaled_embedding) config->embedding_scale = std::sqrt(config->hidden);
  if (!family.score_root_key.empty())
    config->attention_scale = 1 / std::sqrt(read(family.score_root_key, family.score_root));
  if (!family.logits_scale_key.empty())
    config->logits_scale = read(family.logits_scale_key, family.logits_scale);
}

// Numbers that scores and logits are capped softly at; null is no cap.
void ReadSoftcaps(JsonReader& json, const Family& family, ModelConfig* config) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  const auto read = [&](std::string_view key, double otherwise) {
    if (key.empty()) return 0.0;
    const bool none = json.Contains(key) && !json.Has(key);
    if (none || (otherwise == 0 && !json.Has(key))) return 0.0;
    return json.Real(key, kLeast, kMost, otherwise);
  };
  config->score_softcap = read(family.score_softcap_key, family.score_softcap);
  config->logits_softcap = read(family.logits_softcap_key, family.logits_softcap);
}

// The norm, the MLP's activation, ties and dropout of a row.
void ReadKinds(JsonReader& json, const Family& family, ModelConfig* config) {
  config->norm = family.norm;
  config->norm_epsilon = family.epsilon_key.empty()
                             ? family.epsilon
                             : json.Real(family.epsilon_key, 0, 1, family.epsilon);
  config->norm_unit_offset = family.norm_unit_offset;
  config->norm_bias = family.norm_bias;
  config->norm_before = !family.names.attention_norm.empty();
  config->norm_after = !family.names.attention_after_norm.empty();
  config->mlp = family.mlp;
  config->activation = ReadActivation(json, family);
  config->qkv = family.qkv;
  config->fused_gate_up = family.fused_gate_up;
  if (!family.parallel_residual.empty())
    config->parallel_residual = json.Bool(family.parallel_residual, true);
  if (family.shared_norm) config->parallel_residual = config->shared_norm = true;
  if (family.falcon_blocks) ReadFalcon(json, config);
  ReadMultipliers(json, family, config);
  ReadSoftcaps(json, family, config);
  config->alibi = family.alibi;
  config->embedding_norm = !family.names.embedding_norm.empty();
  config->interleaved_rope = family.rotary.interleaved;
  config->qk_norm = family.qk_norm;
  config->qk_norm_whole = family.qk_norm_whole;
  config->tied_embeddings = json.Bool("tie_word_embeddings", family.tied_embeddings);
  const auto dropout = [&](std::string_view key) {
    return key.empty() ? 0 : json.Real(key, 0, kMaxDropout, 0);
  };
  config->dropout = {.embedding = dropout(family.embedding_dropout),
                     .residual = dropout(family.residual_dropout),
                     .attention = dropout(family.attention_dropout)};
  const auto bias = [&](const BiasRule& rule) {
    return rule.key.empty() ? rule.otherwise : json.Bool(rule.key, rule.otherwise);
  };
  config->qkv_bias = bias(family.qkv_bias);
  config->attention_out_bias = bias(family.attention_out_bias);
  config->mlp_bias = bias(family.mlp_bias);
}

// gpt2's numbers have keys and defaults of their own.
void ReadGpt2(JsonReader& json, const Family& family, ModelConfig* config) {
  for (const auto& [key, alias] : family.aliases) json.Alias(key, alias);
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
  config->learned_positions = true;
  config->conv1d_weights = true;
  if (!json.Bool("scale_attn_weights", true)) json.Problem("scale_attn_weights", "false", "true");
  if (json.Bool("scale_attn_by_inverse_layer_idx", false)) {
    json.Problem("scale_attn_by_inverse_layer_idx", "true", "false");
  }
  config->window.assign(config->layers, 0);
}

// The window of the layers that have one; 0 for none. The classes' default holds where the key is
// left out; null is no window.
int64_t ReadWindow(JsonReader& json, const Family& family) {
  const bool switched =
      family.window == WindowRule::kSwitched || family.window == WindowRule::kUnrotated;
  const bool on = !switched || json.Bool("use_sliding_window", false);
  const bool none = json.Contains("sliding_window") && !json.Has("sliding_window");
  if (none || (!json.Has("sliding_window") && family.default_window == 0)) return 0;
  const int64_t window =
      json.Int("sliding_window", on ? 1 : 0, kMaxPositions, family.default_window);
  return on ? window : 0;
}

// Tells which layers have the window where layer_types does not say it.
std::vector<bool> SlidingByClass(JsonReader& json, const Family& family,
                                 const ModelConfig& config) {
  const bool from_layer = family.window == WindowRule::kSwitched;
  const int64_t first = from_layer ? json.Int("max_window_layers", 0, kMaxLayers, 28) : 0;
  const int64_t pattern =
      family.window_pattern_key.empty()
          ? family.window_pattern
          : json.Int(family.window_pattern_key, 1, kMaxLayers, family.window_pattern);
  std::vector<bool> sliding(config.layers, true);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (from_layer) sliding[layer] = layer >= first;
    if (family.window == WindowRule::kUnrotated) sliding[layer] = config.unrotated[layer];
    if (family.window == WindowRule::kPattern) sliding[layer] = (layer + 1) % pattern != 0;
  }
  return sliding;
}

// Which layers have the window, where keys say it.
void ReadLayerTypes(JsonReader& json, const Family& family, int64_t window, ModelConfig* config) {
  const std::vector<std::string> types = json.Strings("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config->layers) {
    json.Problem("layer_types", absl::StrCat(types.size(), " entries"),
                 absl::StrCat(config->layers, " entries, one a layer"));
    return;
  }
  const bool switched =
      family.window == WindowRule::kSwitched || family.window == WindowRule::kUnrotated;
  const std::vector<bool> by_class = SlidingByClass(json, family, *config);
  for (int64_t layer = 0; layer < config->layers; ++layer) {
    bool sliding = window > 0 && by_class[layer];
    if (types.empty() && family.window == WindowRule::kPattern && window == 0 && by_class[layer]) {
      // Layers of this kind have angles of their own as well.
      json.Problem("sliding_window", "none", "a number of tokens", "or set layer_types");
      return;
    }
    if (!types.empty()) {
      const std::string& type = types[layer];
      if (type != "full_attention" && type != "sliding_attention") {
        json.Problem("layer_types", ShownJson(type), "full_attention or sliding_attention");
        return;
      }
      sliding = type == "sliding_attention";
      if (sliding && window == 0) {
        json.Problem("layer_types", "sliding_attention without a window", "full_attention",
                     switched ? "or set use_sliding_window: true and sliding_window"
                              : "or set sliding_window");
        return;
      }
    }
    config->window[layer] = sliding ? window : 0;
  }
}

void ReadWindows(JsonReader& json, const Family& family, ModelConfig* config) {
  const int64_t window = family.window == WindowRule::kNone ? 0 : ReadWindow(json, family);
  config->window.assign(config->layers, window);
  if (family.window == WindowRule::kNone || family.window == WindowRule::kKey) return;
  ReadLayerTypes(json, family, window, config);
}

// Null is as many as heads in every class; without the key each has its own.
int64_t ReadKvHeads(JsonReader& json, const Family& family, int64_t heads) {
  if (!family.grouped_queries) return heads;
  const bool by_class = !json.Contains("num_key_value_heads") && family.kv_heads > 0;
  return json.Int("num_key_value_heads", 1, kMaxHeads, by_class ? family.kv_heads : heads);
}

// Keys whose other values make a model of other blocks.
void CheckFixed(JsonReader& json, const Family& family, int64_t hidden) {
  for (const FixedKey& fixed : family.fixed) {
    if (json.Bool(fixed.key, fixed.must) == fixed.must) continue;
    json.Problem(fixed.key, fixed.must ? "false" : "true", fixed.must ? "true" : "false",
                 fixed.otherwise);
  }
  if (family.embedding_width_key.empty()) return;
  const int64_t width = json.Int(family.embedding_width_key, 1, kMaxWidth, hidden);
  if (width == hidden) return;
  json.Problem(family.embedding_width_key, absl::StrCat(width),
               absl::StrCat("hidden_size ", hidden),
               "projections between embedding and layers are not supported");
}

// Layers without rotary embedding: a list of who has it, or each so many-th has none.
void ReadUnrotated(JsonReader& json, const RotaryRule& rule, ModelConfig* config) {
  if (rule.unrotated_key.empty()) return;
  const int64_t interval =
      json.Int(rule.unrotated_interval_key, 1, kMaxLayers, rule.unrotated_interval);
  const bool listed = json.Has(rule.unrotated_key);
  const std::vector<double> rotated =
      listed ? json.Reals(rule.unrotated_key) : std::vector<double>();
  config->unrotated.assign(config->layers, false);
  if (listed && static_cast<int64_t>(rotated.size()) < config->layers) {
    return json.Problem(rule.unrotated_key, absl::StrCat(rotated.size(), " entries"),
                        absl::StrCat(config->layers, " entries, one a layer"));
  }
  for (int64_t layer = 0; layer < config->layers; ++layer)
    config->unrotated[layer] = listed ? rotated[layer] == 0 : (layer + 1) % interval == 0;
}

// The families but gpt2: the same keys, with the defaults of each.
void ReadNumbers(JsonReader& json, const Family& family, ModelConfig* config) {
  const auto by_class = [](int64_t number) {
    return number > 0 ? std::optional<int64_t>(number) : std::nullopt;
  };
  for (const auto& [key, alias] : family.aliases) json.Alias(key, alias);
  config->vocabulary = json.Int("vocab_size", 1, kMaxVocabulary, by_class(family.vocabulary));
  config->hidden = json.Int("hidden_size", 1, kMaxWidth, by_class(family.hidden));
  config->layers = json.Int("num_hidden_layers", 1, kMaxLayers, by_class(family.layers));
  config->heads = json.Int("num_attention_heads", 1, kMaxHeads, by_class(family.heads));
  config->kv_heads = ReadKvHeads(json, family, config->heads);
  const int64_t head_dim = family.head_dim > 0 ? family.head_dim : config->hidden / config->heads;
  config->head_dim =
      family.head_dim_key ? json.Int("head_dim", 1, kMaxHeadDim, head_dim) : head_dim;
  const int64_t inner = std::max(family.intermediate, family.intermediate_times * config->hidden);
  config->intermediate = family.intermediate_key.empty()
                             ? inner
                             : json.Int(family.intermediate_key, 1, kMaxWidth, by_class(inner));
  config->max_positions = family.max_positions == 0 ? kMaxPositions
                                                    : json.Int(family.positions_key, 1,
                                                               kMaxPositions, family.max_positions);
  config->learned_positions = !family.names.position_embedding.empty();
  config->position_rows_before = family.position_rows_before;
  CheckFixed(json, family, config->hidden);
  ReadUnrotated(json, family.rotary, config);
  ReadWindows(json, family, config);
}

void CheckShape(JsonReader& json, const ModelConfig& config, int64_t sequence_length) {
  const bool gpt2 = config.family == "gpt2";
  if (config.hidden % config.heads != 0 && gpt2) {
    json.Problem("n_embd", absl::StrCat(config.hidden),
                 absl::StrCat("a multiple of n_head ", config.heads));
  }
  const Family* family = FindFamily(config.family);
  if (config.hidden % config.heads != 0 && family != nullptr && !family->head_dim_key) {
    json.Problem("hidden_size", absl::StrCat(config.hidden),
                 absl::StrCat("a multiple of num_attention_heads ", config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    const char* key = config.family == "falcon" ? "num_kv_heads" : "num_key_value_heads";
    json.Problem(key, absl::StrCat(config.kv_heads),
                 absl::StrCat("a divisor of num_attention_heads ", config.heads));
  }
  if (config.head_dim % 2 != 0 || config.head_dim < 1 || config.head_dim > kMaxHeadDim) {
    json.Problem("head_dim", absl::StrCat(config.head_dim),
                 absl::StrCat("even, from 2 to ", kMaxHeadDim));
  }
  if (sequence_length > config.max_positions) {
    json.Problem(family->positions_key, absl::StrCat(config.max_positions),
                 absl::StrCat("at least data.sequence_length ", sequence_length),
                 "lower data.sequence_length or raise it here");
  }
}

void ReadFamily(JsonReader& json, const Family& family, int64_t sequence_length,
                std::vector<std::string>* problems, ModelConfig* config) {
  config->initializer_range = json.Real(family.initializer_key, 0, 10, family.initializer_range);
  family.name == "gpt2" ? ReadGpt2(json, family, config) : ReadNumbers(json, family, config);
  ReadKinds(json, family, config);
  if (family.mpt_blocks) ReadMpt(json, problems, config);
  if (config->learned_positions || config->alibi) return;
  if (problems->empty()) {
    Ropes ropes = ReadRopes(json, {config->head_dim, config->max_positions, sequence_length},
                            family.rotary, problems, &config->remarks);
    config->rope = std::move(ropes.rope);
    config->local_rope = std::move(ropes.local);
    return;
  }
  for (std::string_view key :
       {std::string_view("rope_scaling"), std::string_view("rope_parameters"),
        std::string_view("original_max_position_embeddings"), family.rotary.part_key,
        family.rotary.theta_key, family.rotary.local_theta_key}) {
    if (!key.empty()) json.Has(key);  // known, though nobody looks at them now
  }
}

// Classes that name a token for padding where the config names none treat its row as if it did.
void RemarkPadding(const JsonReader& json, const Family& family, ModelConfig* config) {
  const bool has_row = family.pad_token >= 0 && family.pad_token < config->vocabulary;
  if (!has_row || json.object().contains("pad_token_id")) return;
  config->remarks.push_back(absl::StrCat("model.config: pad_token_id: ", config->family, " takes ",
                                         family.pad_token, " where none is named, ",
                                         Absl(PaddingNote()), "; null names none"));
}

}  // namespace

const RopeConfig* RopeOf(const ModelConfig& config, int64_t layer) {
  const bool unrotated = !config.unrotated.empty() && config.unrotated[layer];
  if (unrotated || config.rope.inverse_frequency.empty()) return nullptr;
  const bool local = config.window[layer] > 0 && !config.local_rope.inverse_frequency.empty();
  return local ? &config.local_rope : &config.rope;
}

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
  const Family* family = FindFamily(config.family);
  if (family == nullptr) {
    const bool gemma3 = config.family == "gemma3";
    reader.Problem("model_type", config.family.empty() ? "nothing" : ShownJson(config.family),
                   absl::StrCat("one of ", FamilyList()),
                   gemma3 ? "models of texts and images are not supported; of gemma3's config give "
                            "what stands under text_config, with model_type gemma3_text"
                          : "other architectures are not supported");
  } else {
    ReadFamily(reader, *family, sequence_length, &problems, &config);
  }
  if (problems.empty()) CheckShape(reader, config, sequence_length);
  if (family != nullptr) {
    RemarkPadding(reader, *family, &config);
    JudgeConfigKeys(reader, config.family, &config.remarks);
  }
  if (problems.empty()) return config;
  std::string text = absl::StrCat("model.config: ", absl::StrJoin(problems, "\nmodel.config: "));
  // A misspelt key is why another one is missing.
  for (const std::string& remark : config.remarks) absl::StrAppend(&text, "\n", remark);
  return absl::InvalidArgumentError(text);
}

}  // namespace terrace
