// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/model_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/paths/same_access.h"
#include "base/status_macros.h"
#include "base/text/json_text.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

constexpr int64_t kFileLimitBytes = 256 << 20;
constexpr char kConfig[] = "config.json";
constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kSpecialTokensMap[] = "special_tokens_map.json";
// What transformers looks for beside the main file of a tokenizer.
constexpr const char* kCompanions[] = {kTokenizerConfig, kSpecialTokensMap, kChatTemplateFile,
                                       "chat_template.json", kGenerationConfig};
// Settings for generation that older configs hold; transformers reads them there only where there
// is no generation_config.json.
constexpr const char* kGenerationKeys[] = {"max_length",
                                           "max_new_tokens",
                                           "min_length",
                                           "do_sample",
                                           "early_stopping",
                                           "num_beams",
                                           "num_beam_groups",
                                           "diversity_penalty",
                                           "temperature",
                                           "top_k",
                                           "top_p",
                                           "min_p",
                                           "typical_p",
                                           "repetition_penalty",
                                           "length_penalty",
                                           "no_repeat_ngram_size",
                                           "encoder_no_repeat_ngram_size",
                                           "bad_words_ids",
                                           "num_return_sequences",
                                           "forced_bos_token_id",
                                           "forced_eos_token_id",
                                           "remove_invalid_values",
                                           "exponential_decay_length_penalty",
                                           "suppress_tokens",
                                           "begin_suppress_tokens"};
constexpr std::pair<const char*, const char*> kArchitectures[] = {
    {"gpt2", "GPT2LMHeadModel"},
    {"llama", "LlamaForCausalLM"},
    {"mistral", "MistralForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"starcoder2", "Starcoder2ForCausalLM"},
    {"gpt_neox", "GPTNeoXForCausalLM"},
    {"gemma", "GemmaForCausalLM"},
    {"stablelm", "StableLmForCausalLM"},
    {"phi3", "Phi3ForCausalLM"},
    {"olmo2", "Olmo2ForCausalLM"},
    {"granite", "GraniteForCausalLM"},
    {"opt", "OPTForCausalLM"},
    {"gemma3_text", "Gemma3ForCausalLM"},
    {"falcon", "FalconForCausalLM"},
    {"olmo3", "Olmo3ForCausalLM"},
    {"smollm3", "SmolLM3ForCausalLM"},
    {"cohere", "CohereForCausalLM"},
    {"gemma2", "Gemma2ForCausalLM"},
    {"bloom", "BloomForCausalLM"},
    {"mpt", "MptForCausalLM"}};

const char* TorchName(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kBF16:
      return "bfloat16";
    case kernels::DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

fs::path MainFile(std::string_view tokenizer) {
  std::error_code ignored;
  const fs::path path(tokenizer);
  if (!fs::is_directory(path, ignored)) return path;
  return path /
         (fs::exists(path / "tokenizer.json", ignored) ? "tokenizer.json" : "tokenizer.model");
}

// A file that cannot be read is left out, and a line in the log says so.
absl::Status Copy(const fs::path& from, const fs::path& to) {
  const absl::StatusOr<std::string> text = ReadTextFile(from.string(), kFileLimitBytes);
  if (!text.ok()) {
    log::Warn("what is saved has no ", to.filename().string(), ": ", text.status().message());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const UniqueFd file, CreateWithAccessOf(from.string(), to.string()));
  RETURN_IF_ERROR(WriteAll(file, std::as_bytes(std::span(*text)), to.string()));
  return SyncFile(file, to.string());
}

// An empty object where the file is missing or holds something else.
Json ReadObject(const fs::path& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path.string(), kFileLimitBytes);
  if (!text.ok() || !CheckJson(*text).ok()) return Json::object();
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

absl::Status WriteObject(const Json& json, const fs::path& path) {
  return WriteSyncedFile(path.string(),
                         json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// Families whose class in transformers has a pad_token_id where the config has none.
constexpr const char* kPadsByDefault[] = {"gemma",       "phi3",  "olmo2",   "opt",   "gemma2",
                                          "gemma3_text", "olmo3", "smollm3", "cohere"};

void SetIds(const SpecialTokens& special, Json* json) {
  if (special.stops.size() == 1) {
    (*json)["eos_token_id"] = special.stops[0];
  } else if (!special.stops.empty()) {
    (*json)["eos_token_id"] = special.stops;
  }
  if (special.begin.has_value()) (*json)["bos_token_id"] = special.begin->id;
  if (special.padding.has_value()) (*json)["pad_token_id"] = special.padding->id;
}

// Leaves a member that says the same in more words, such as {"content": "</s>", "lstrip": false}.
void SetText(const char* key, const std::optional<SpecialToken>& token, Json* json) {
  if (!token.has_value()) return;
  const Json given = json->value(key, Json());
  const Json& text = given.is_object() ? given.value("content", Json()) : given;
  if (text != token->text) (*json)[key] = token->text;
}

void SetTexts(const SpecialTokens& special, Json* json) {
  SetText("bos_token", special.begin, json);
  SetText("eos_token", special.end, json);
  SetText("pad_token", special.padding, json);
}

absl::Status NameInGenerationConfig(const SpecialTokens& special, const fs::path& folder) {
  std::error_code ignored;
  Json settings = ReadObject(folder / kGenerationConfig);
  if (!fs::exists(folder / kGenerationConfig, ignored)) {
    const Json config = ReadObject(folder / kConfig);
    for (const char* key : kGenerationKeys) {
      if (config.contains(key)) settings[key] = config[key];
    }
  }
  SetIds(special, &settings);
  return settings.empty() ? absl::OkStatus() : WriteObject(settings, folder / kGenerationConfig);
}

}  // namespace

absl::StatusOr<std::string> CompleteModelConfig(std::string_view config_json, kernels::DType dtype,
                                                const SpecialTokens& special) {
  const bool is_json = CheckJson(config_json).ok();
  auto json = is_json ? Json::parse(config_json, nullptr, /*allow_exceptions=*/false) : Json();
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the model's config is not a JSON object");
  }
  if (!json.contains("architectures")) {
    for (const auto& [model_type, architecture] : kArchitectures) {
      if (json.value("model_type", Json()) == model_type) json["architectures"] = {architecture};
    }
  }
  json.erase("dtype");  // the newer name of the same key
  json["torch_dtype"] = TorchName(dtype);
  SetIds(special, &json);
  if (!json.contains("eos_token_id")) json["eos_token_id"] = nullptr;
  // Every row is trained, and the table may not have the one that the class takes for padding.
  const Json type = json.value("model_type", Json());
  const bool pads = std::find(std::begin(kPadsByDefault), std::end(kPadsByDefault), type) !=
                    std::end(kPadsByDefault);
  if (pads && !json.contains("pad_token_id")) json["pad_token_id"] = nullptr;
  return json.dump(2) + "\n";
}

absl::Status CopyModelFiles(const ModelSources& sources, std::string_view folder) {
  const fs::path target(folder);
  std::error_code ignored;
  fs::path weights(sources.weights);
  if (!fs::is_directory(weights, ignored)) weights = weights.parent_path();
  std::vector<fs::path> folders;
  const bool has_tokenizer = !sources.tokenizer.empty() && sources.tokenizer != "bytes";
  if (has_tokenizer) {
    const fs::path main = MainFile(sources.tokenizer);
    const bool is_json = main.extension() == ".json";
    RETURN_IF_ERROR(Copy(main, target / (is_json ? "tokenizer.json" : "tokenizer.model")));
    folders.push_back(main.parent_path());
  }
  if (!sources.chat_template.empty())
    RETURN_IF_ERROR(Copy(sources.chat_template, target / kChatTemplateFile));
  // Settings and templates of the weights that training began with, where the tokenizer has none.
  if (fs::path(sources.weights).is_absolute()) folders.push_back(weights);
  for (const char* name : kCompanions) {
    for (const fs::path& from : folders) {
      const bool of_tokenizer =
          name == std::string_view(kTokenizerConfig) || name == std::string_view(kSpecialTokensMap);
      if (of_tokenizer && !has_tokenizer) continue;
      if (of_tokenizer && from != folders.front()) continue;
      // A link that leads nowhere is one that should be there: Copy says so.
      if (!fs::exists(fs::symlink_status(from / name, ignored))) continue;
      if (fs::exists(target / name, ignored)) continue;
      RETURN_IF_ERROR(Copy(from / name, target / name));
    }
  }
  return absl::OkStatus();
}

absl::Status NameSpecialTokens(const SpecialTokens& special, std::string_view folder) {
  const fs::path target(folder);
  std::error_code ignored;
  RETURN_IF_ERROR(NameInGenerationConfig(special, target));
  const bool is_json = fs::exists(target / "tokenizer.json", ignored);
  if (!is_json && !fs::exists(target / "tokenizer.model", ignored)) return absl::OkStatus();
  Json config = ReadObject(target / kTokenizerConfig);
  // For a tokenizer.json alone: else the class is guessed from the model type, which rebuilds some
  // tokenizers differently.
  if (is_json && config.empty()) config["tokenizer_class"] = "PreTrainedTokenizerFast";
  SetTexts(special, &config);
  if (!config.empty()) RETURN_IF_ERROR(WriteObject(config, target / kTokenizerConfig));
  Json map = ReadObject(target / kSpecialTokensMap);
  SetTexts(special, &map);
  return map.empty() ? absl::OkStatus() : WriteObject(map, target / kSpecialTokensMap);
}

absl::StatusOr<std::vector<std::string>> ListModelFiles(std::string_view folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(fs::path(folder), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool is_companion =
        std::find(std::begin(kCompanions), std::end(kCompanions), name) != std::end(kCompanions);
    if (is_companion || name == kConfig || name == "tokenizer.json" || name == "tokenizer.model") {
      names.push_back(name);
    }
  }
  if (error) return FileError(error.value(), "read", folder);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace terrace
