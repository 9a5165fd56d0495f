// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/inputs.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {

absl::Status ReadModelConfig(std::string_view base_directory, v1::JobSpec* spec) {
  v1::ModelSpec& model = *spec->mutable_model();
  if (!model.config_json().empty()) return absl::OkStatus();
  std::filesystem::path path = std::filesystem::path(base_directory) / model.config();
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  absl::StatusOr<std::string> text = ReadTextFile(path.string(), kModelConfigBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.config: ", text.status().message(),
        "; it must be a preset or a Hugging Face config.json that the coordinator can read"));
  }
  model.set_config_json(*std::move(text));
  return absl::OkStatus();
}

absl::StatusOr<v1::JobSpec> ReadJobSpec(std::string_view yaml, std::string_view base_directory) {
  ASSIGN_OR_RETURN(v1::JobSpec spec, ParseJobSpec(yaml, base_directory));
  RETURN_IF_ERROR(ReadModelConfig(base_directory, &spec));
  return spec;
}

}  // namespace terrace
