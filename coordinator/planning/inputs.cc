// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/inputs.h"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/model/adapter_config.h"
#include "coordinator/model/presets.h"
#include "coordinator/planning/data_files.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

std::string NearestPreset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  const std::string_view near = Nearest(name, names);
  return near.empty() ? "`terrace-coordinator presets` lists them"
                      : absl::StrCat("try ", Absl(near));
}

// In a folder that stands for what it holds, these.
constexpr std::string_view kTokenizerNames[] = {"tokenizer.json", "tokenizer.model"};
constexpr std::string_view kWeightsNames[] = {"model.safetensors", "model.safetensors.index.json"};

// PEFT's.
constexpr std::string_view kAdapterNames[] = {"adapter_model.safetensors"};
constexpr char kAdapterConfigName[] = "adapter_config.json";
constexpr char kAdapterKey[] = "model.lora.init";

absl::Status CheckInput(std::string_view key, const std::string& path,
                        std::span<const std::string_view> names) {
  if (!path.starts_with('/')) return absl::OkStatus();  // a word, such as "random"
  absl::Status status = CheckIsFileOrFolder(path);
  for (const std::string_view name : names) {
    status.Update(CheckIsFileOrFolder(absl::StrCat(path, "/", Absl(name))));
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(key), ": got ", path, ": ", status.message()));
}

}  // namespace

absl::Status CheckInputs(const v1::JobSpec& spec) {
  for (const std::string& path : spec.data().train()) {
    RETURN_IF_ERROR(CheckInput("data.train", path, {}));
  }
  for (const std::string& path : spec.data().validation()) {
    RETURN_IF_ERROR(CheckInput("data.validation", path, {}));
  }
  RETURN_IF_ERROR(CheckInput("data.tokenizer", spec.data().tokenizer(), kTokenizerNames));
  RETURN_IF_ERROR(CheckInput("data.chat_template", spec.data().chat_template(), {}));
  RETURN_IF_ERROR(CheckInput("model.init", spec.model().init(), kWeightsNames));
  RETURN_IF_ERROR(CheckInput(kAdapterKey, spec.model().lora().init(), kAdapterNames));
  return CheckDataFiles(spec);
}

absl::Status ReadModelConfig(std::string_view base_directory, v1::JobSpec* spec,
                             const JobRoots& roots) {
  v1::ModelSpec& model = *spec->mutable_model();
  if (!model.config_json().empty()) return absl::OkStatus();
  if (const Preset* preset = FindPreset(model.config()); preset != nullptr) {
    model.set_config_json(std::string(preset->config_json));
    return absl::OkStatus();
  }
  std::filesystem::path path = std::filesystem::path(base_directory) / model.config();
  RETURN_IF_ERROR(CheckReadPath("model.config", path.lexically_normal().string(), roots));
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  RETURN_IF_ERROR(CheckReadPath("model.config", path.lexically_normal().string(), roots));
  absl::StatusOr<std::string> text = ReadTextFile(path.string(), kModelConfigBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.config: got ", model.config(),
                     ", must be a preset or a config.json that the coordinator can read (",
                     text.status().message(), "); ", NearestPreset(model.config())));
  }
  RETURN_IF_ERROR(CheckUtf8(absl::StrCat("model.config: ", path.string()), *text));
  model.set_config_json(*std::move(text));
  return absl::OkStatus();
}

absl::Status ReadAdapter(v1::JobSpec* spec, const JobRoots& roots) {
  const std::string folder = spec->model().lora().init();
  if (!folder.starts_with('/')) return absl::OkStatus();
  RETURN_IF_ERROR(CheckReadPath(kAdapterKey, folder, roots));
  const std::filesystem::path path(folder);
  const std::string config_path = (path / kAdapterConfigName).string();
  const absl::StatusOr<std::string> text = ReadTextFile(config_path, kModelConfigBytesMax);
  std::error_code error;
  if (!text.ok() || !std::filesystem::exists(path / kAdapterNames[0], error)) {
    const std::string reason = text.ok() ? absl::StrCat("there is no ", Absl(kAdapterNames[0]))
                                         : std::string(text.status().message());
    return absl::InvalidArgumentError(
        absl::StrCat(kAdapterKey, ": got ", folder,
                     ", must be default, gaussian or a folder that the "
                     "coordinator can read with PEFT's ",
                     kAdapterConfigName, " and ", Absl(kAdapterNames[0]), " (", reason,
                     "); PEFT's save_pretrained writes one"));
  }
  RETURN_IF_ERROR(CheckUtf8(absl::StrCat(kAdapterKey, ": ", config_path), *text));
  const absl::StatusOr<AdapterConfig> config = ParseAdapterConfig(*text);
  if (!config.ok()) {
    const std::string place = absl::StrCat(kAdapterKey, ": ", config_path, ": ");
    return absl::InvalidArgumentError(absl::StrCat(
        place,
        absl::StrReplaceAll(config.status().message(), {{"\n", absl::StrCat("\n", place)}})));
  }
  v1::LoraSpec* lora = spec->mutable_model()->mutable_lora();
  lora->set_rank(static_cast<uint32_t>(config->rank));
  lora->set_alpha(config->alpha);
  lora->set_rslora(config->rslora);
  if (lora->dropout() < 0) lora->set_dropout(config->dropout);
  lora->clear_targets();
  for (const std::string& target : config->targets) lora->add_targets(target);
  return absl::OkStatus();
}

absl::StatusOr<v1::JobSpec> ReadJobSpec(std::string_view yaml, std::string_view base_directory,
                                        const v1::ArrayMember& member, const JobRoots& roots) {
  ASSIGN_OR_RETURN(v1::JobSpec spec, ParseJobSpec(yaml, base_directory, member));
  RETURN_IF_ERROR(CheckPathsOf(spec, roots));
  RETURN_IF_ERROR(ReadModelConfig(base_directory, &spec, roots));
  RETURN_IF_ERROR(ReadAdapter(&spec, roots));
  RETURN_IF_ERROR(CheckInputs(spec));
  return spec;
}

}  // namespace terrace
