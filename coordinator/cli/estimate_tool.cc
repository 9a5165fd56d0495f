// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/estimate_tool.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "coordinator/estimate/report.h"
#include "coordinator/model/config.h"
#include "coordinator/model/presets.h"

namespace terrace {
namespace {

constexpr int64_t kConfigBytesMax = 1 << 20;
constexpr int64_t kUsualLength = 2048;

absl::StatusOr<std::string> ConfigJson(const std::string& model) {
  if (const Preset* preset = FindPreset(model); preset != nullptr)
    return std::string(preset->config_json);
  std::error_code error;
  std::filesystem::path path = model;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  if (std::filesystem::exists(path, error)) return ReadTextFile(path.string(), kConfigBytesMax);
  std::vector<std::string_view> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  const std::string_view nearest = Nearest(model, names);
  return absl::NotFoundError(
      absl::StrCat("model: got '", model, "', must be a preset or the path of a config.json; ",
                   nearest.empty() ? "`terrace-coordinator presets` lists the presets"
                                   : absl::StrCat("is ", std::string(nearest), " meant?")));
}

}  // namespace

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const kernels::OptimizerRow& row : kernels::kOptimizerRows) names.emplace_back(row.name);
  return names;
}

absl::Status PrintEstimate(const EstimateOptions& options) {
  if (options.precision == "fp32" && options.gradient == "bf16") {
    return absl::InvalidArgumentError(
        "--gradient: got 'bf16', must be f32 with --precision fp32; try --precision bf16");
  }
  const kernels::OptimizerRow& rule = *kernels::FindOptimizer(options.optimizer);
  if ((rule.whole_matrix || rule.factored) && options.moments == "int8") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--moments: got 'int8', must be f32 or bf16 with --optimizer ", options.optimizer));
  }
  ASSIGN_OR_RETURN(const std::string json, ConfigJson(options.model));
  int64_t length = options.sequence_length;
  if (length == 0) {
    ASSIGN_OR_RETURN(const ModelConfig any, ParseModelConfig(json, 1));
    length = std::min(kUsualLength, any.max_positions);
  }
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(json, length));
  for (const std::string& remark : config.remarks)
    std::fprintf(stderr, "note: %s\n", remark.c_str());
  const Model model = BuildModel(config);
  const EstimateInput input = {.model = &model,
                               .sequence_length = length,
                               .batch = options.batch,
                               .devices = options.devices,
                               .bf16 = options.precision == "bf16",
                               .optimizer = kernels::FindOptimizer(options.optimizer),
                               .moments = kernels::FindFormat(options.moments),
                               .gradients = kernels::FindFormat(options.gradient),
                               .lora_rank = options.lora_rank};
  std::vector<EstimateSection> sections = EstimateMemory(input);
  std::erase_if(sections, [&](const EstimateSection& section) {
    return !options.only.empty() && section.name != options.only;
  });
  const std::string text =
      options.json ? EstimateJson(input, sections) : EstimateText(input, sections);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace terrace
