// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/model_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokenizerLimitBytes = 256 << 20;
constexpr std::pair<const char*, const char*> kArchitectures[] = {{"gpt2", "GPT2LMHeadModel"},
                                                                  {"llama", "LlamaForCausalLM"},
                                                                  {"mistral", "MistralForCausalLM"},
                                                                  {"qwen2", "Qwen2ForCausalLM"},
                                                                  {"qwen3", "Qwen3ForCausalLM"}};

const char* TorchName(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kBF16: return "bfloat16";
    case kernels::DType::kF16: return "float16";
    default: return "float32";
  }
}

// What transformers looks for beside the main file of a tokenizer.
constexpr const char* kCompanions[] = {"tokenizer_config.json", "special_tokens_map.json"};

absl::Status CopySynced(const fs::path& from, const fs::path& to) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(from.string(), kTokenizerLimitBytes));
  return WriteSyncedFile(to.string(), text);
}

}  // namespace

absl::StatusOr<std::string> CompleteModelConfig(std::string_view config_json, kernels::DType dtype) {
  auto json = nlohmann::ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("the model's config is not a JSON object");
  if (!json.contains("architectures")) {
    for (const auto& [model_type, architecture] : kArchitectures) {
      if (json.value("model_type", nlohmann::ordered_json()) == model_type) json["architectures"] = {architecture};
    }
  }
  json.erase("dtype");  // the newer name of the same key
  json["torch_dtype"] = TorchName(dtype);
  return json.dump(2) + "\n";
}

absl::StatusOr<std::vector<std::string>> CopyTokenizerFiles(std::string_view tokenizer, std::string_view folder) {
  std::vector<std::string> written;
  if (tokenizer.empty() || tokenizer == "bytes") return written;
  const fs::path source(tokenizer);
  const std::string main_name = source.extension() == ".json" ? "tokenizer.json" : "tokenizer.model";
  std::error_code ignored;
  if (!fs::exists(source, ignored)) {
    log::Warn("the tokenizer ", source.string(), " is gone; ", std::string(folder), " is written without it");
    return written;
  }
  RETURN_IF_ERROR(CopySynced(source, fs::path(folder) / main_name));
  written.push_back(main_name);
  for (const char* name : kCompanions) {
    if (!fs::exists(source.parent_path() / name, ignored)) continue;
    RETURN_IF_ERROR(CopySynced(source.parent_path() / name, fs::path(folder) / name));
    written.push_back(name);
  }
  return written;
}

}  // namespace terrace
