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
    case kernels::DType::kBF16:
      return "bfloat16";
    case kernels::DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

// What transformers looks for beside the main file of a tokenizer.
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr const char* kCompanions[] = {kTokenizerConfig, "special_tokens_map.json"};
// For a tokenizer.json alone: else the class is guessed from the model type, which rebuilds some
// tokenizers differently.
constexpr char kPlainTokenizerConfig[] = "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}\n";

// False when the source cannot be read; then a line in the log says so.
absl::StatusOr<bool> Copy(const fs::path& from, const fs::path& to) {
  const absl::StatusOr<std::string> text = ReadTextFile(from.string(), kTokenizerLimitBytes);
  if (!text.ok()) {
    log::Warn(to.parent_path().string(),
              " is written without a tokenizer: ", text.status().message());
    return false;
  }
  RETURN_IF_ERROR(WriteSyncedFile(to.string(), *text));
  return true;
}

fs::path MainFile(std::string_view tokenizer) {
  std::error_code ignored;
  const fs::path path(tokenizer);
  if (!fs::is_directory(path, ignored)) return path;
  return path /
         (fs::exists(path / "tokenizer.json", ignored) ? "tokenizer.json" : "tokenizer.model");
}

}  // namespace

absl::StatusOr<std::string> CompleteModelConfig(std::string_view config_json,
                                                kernels::DType dtype) {
  auto json = nlohmann::ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the model's config is not a JSON object");
  }
  if (!json.contains("architectures")) {
    for (const auto& [model_type, architecture] : kArchitectures) {
      if (json.value("model_type", nlohmann::ordered_json()) == model_type) {
        json["architectures"] = {architecture};
      }
    }
  }
  json.erase("dtype");  // the newer name of the same key
  json["torch_dtype"] = TorchName(dtype);
  return json.dump(2) + "\n";
}

absl::StatusOr<std::vector<std::string>> CopyTokenizerFiles(std::string_view tokenizer,
                                                            std::string_view folder) {
  std::vector<std::string> written;
  if (tokenizer.empty() || tokenizer == "bytes") return written;
  const fs::path source = MainFile(tokenizer);
  const fs::path target(folder);
  const std::string main_name =
      source.extension() == ".json" ? "tokenizer.json" : "tokenizer.model";
  ASSIGN_OR_RETURN(const bool has_main, Copy(source, target / main_name));
  if (!has_main) return written;
  written.push_back(main_name);
  std::error_code ignored;
  for (const char* name : kCompanions) {
    if (!fs::exists(source.parent_path() / name, ignored)) continue;
    ASSIGN_OR_RETURN(const bool copied, Copy(source.parent_path() / name, target / name));
    if (copied) written.push_back(name);
  }
  if (main_name == "tokenizer.json" && !fs::exists(target / kTokenizerConfig, ignored)) {
    RETURN_IF_ERROR(WriteSyncedFile((target / kTokenizerConfig).string(), kPlainTokenizerConfig));
    written.push_back(kTokenizerConfig);
  }
  return written;
}

}  // namespace terrace
