// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/adapter_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "base/text/json_text.h"
#include "coordinator/model/config.h"
#include "coordinator/model/json_reader.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxRank = 1 << 16;
constexpr double kMinAlpha = 1e-6, kMaxAlpha = 1e6;  // as of model.lora.alpha
constexpr size_t kMaxTargets = 4096, kMaxTargetBytes = 256;
// So many of the unknown keys are named, each cut to so many bytes.
constexpr size_t kUnknownShown = 5, kMaxKeyBytes = 64;
constexpr char kLeftOut[] = "left out or null";
constexpr char kAllLinear[] = "all-linear";

// Keys that say who made the adapter and how, or that take effect only beside others.
constexpr std::string_view kWithoutEffect[] = {"auto_mapping",      "base_model_name_or_path",
                                               "corda_config",      "ensure_weight_tying",
                                               "eva_config",        "fan_in_fan_out",
                                               "inference_mode",    "layers_pattern",
                                               "loftq_config",      "lora_ga_config",
                                               "megatron_core",     "peft_version",
                                               "qalora_group_size", "revision",
                                               "runtime_config"};

struct Refusal {
  std::string_view key;
  std::string_view way_out;
};
// Keys that make another adapter as soon as they are more than null, false, 0 or empty.
constexpr Refusal kRefused[] = {
    {"alora_invocation_tokens", "adapters that act from a token on are not trained here"},
    {"alpha_pattern", "one alpha for all modules is trained here"},
    {"exclude_modules", "name the modules that have an adapter in target_modules alone"},
    {"layer_replication", "save the model with its layers repeated, and give that as model.init"},
    {"layers_to_transform", "name the layers in target_modules, as in layers.3.self_attn.q_proj"},
    {"lora_bias", "an adapter has no biases here"},
    {"modules_to_save", "modules beside the adapter that were trained whole are not read"},
    {"rank_pattern", "one rank for all modules is trained here"},
    {"target_parameters", "name modules in target_modules"},
    {"trainable_token_indices", "an adapter of embeddings is not trained here"},
    {"use_dora", "DoRA is not trained here; merge the adapter with PEFT and give model.init that"},
};

bool IsNothing(const Json& value) {
  if (value.is_number()) return value == 0;
  if (value.is_boolean()) return !value.get<bool>();
  return value.empty();  // null, "", [], {}
}

void ReadTargets(JsonReader& json, AdapterConfig* config) {
  constexpr char kKey[] = "target_modules";
  const Json* value = json.Has(kKey) ? &json.object().at(kKey) : nullptr;
  if (value != nullptr && value->is_string()) {
    if (*value == kAllLinear) {
      config->targets = {kAllLinear};
    } else {
      json.Problem(kKey, ShownJson(*value), "all-linear or a list of names",
                   "write out the modules that this pattern matches");
    }
    return;
  }
  config->targets = json.Strings(kKey);
  std::sort(config->targets.begin(), config->targets.end());
  if (value == nullptr || (value->is_array() && value->empty()))
    json.Problem(kKey, "nothing", "all-linear or a list of names");
  if (config->targets.size() > kMaxTargets) {
    json.Problem(kKey, absl::StrCat(config->targets.size(), " names"),
                 absl::StrCat("at most ", kMaxTargets), "the last part of a name means all layers");
  }
  for (const std::string& target : config->targets) {
    if (!target.empty() && target.size() <= kMaxTargetBytes) continue;
    return json.Problem(kKey, ShownJson(target),
                        absl::StrCat("names of 1 to ", kMaxTargetBytes, " bytes"));
  }
}

// How A and B began says nothing of what they are now, unless the base's weights were changed too.
void CheckInit(JsonReader& json) {
  constexpr char kKey[] = "init_lora_weights";
  if (!json.Has(kKey)) return;
  const Json& value = json.object().at(kKey);
  if (value.is_boolean() || value == "gaussian" || value == "orthogonal" || value == "eva") return;
  json.Problem(kKey, ShownJson(value), "true, false, gaussian, orthogonal or eva",
               "the others may change the base's weights: save the adapter with "
               "path_initial_model_for_weight_conversion");
}

void JudgeRest(JsonReader& json) {
  for (const std::string_view key : kWithoutEffect) json.Contains(key);
  for (const Refusal& refusal : kRefused) {
    if (!json.Has(refusal.key)) continue;
    const Json& value = json.object().at(std::string(refusal.key));
    if (!IsNothing(value)) json.Problem(refusal.key, ShownJson(value), kLeftOut, refusal.way_out);
  }
  size_t unknown = 0;
  for (const std::string& key : json.NotAsked()) {
    const Json& value = json.object().at(key);
    if (IsNothing(value) || ++unknown > kUnknownShown) continue;
    json.Problem(key.size() <= kMaxKeyBytes ? key : absl::StrCat("a key of ", key.size(), " bytes"),
                 ShownJson(value), kLeftOut, "what it does to an adapter is not known here");
  }
  if (unknown > kUnknownShown)
    json.Problem(absl::StrCat(unknown - kUnknownShown, " more keys"), "values", kLeftOut);
}

void Read(JsonReader& json, AdapterConfig* config) {
  const std::string type = json.String("peft_type", "");
  if (type != "LORA") json.Problem("peft_type", ShownJson(type), "LORA");
  const std::string task = json.String("task_type", "CAUSAL_LM");
  if (task != "CAUSAL_LM") json.Problem("task_type", ShownJson(task), "CAUSAL_LM or null");
  const std::string bias = json.String("bias", "none");
  if (bias != "none")
    json.Problem("bias", ShownJson(bias), "none", "biases beside the adapter are not read");
  config->rank = json.Int("r", 1, kMaxRank);
  config->alpha = json.Real("lora_alpha", kMinAlpha, kMaxAlpha, 8);  // PEFT's default
  config->rslora = json.Bool("use_rslora", false);
  config->dropout = json.Real("lora_dropout", 0, kMaxDropout, 0);
  ReadTargets(json, config);
  CheckInit(json);
  JudgeRest(json);
}

}  // namespace

absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view text) {
  std::vector<std::string> repeated;
  const absl::Status checked = CheckJson(text, &repeated);
  const Json json = checked.ok() ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not a JSON object",
                     checked.ok() ? "" : absl::StrCat(" (", checked.message(), ")")));
  }
  std::vector<std::string> problems;
  if (!repeated.empty())
    problems.push_back(absl::StrCat(repeated.front(), ": stands twice, must be given once"));
  JsonReader reader(json, "", &problems);
  AdapterConfig config;
  Read(reader, &config);
  if (problems.empty()) return config;
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace terrace
