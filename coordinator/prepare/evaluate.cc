// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/evaluate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/model/lora.h"
#include "coordinator/prepare/layout_text.h"
#include "proto/check/program_check.h"
#include "proto/program/caching_need.h"

namespace terrace {

int64_t ExternalBytes(const Budget& budget) {
  return std::max(kCpuExternalBytes, budget.external_bytes);
}

int64_t BytesOf(const v1::Program& program, v1::Tier tier) {
  return ReservedBytesNeeded(program, tier) + (tier == v1::DEVICE ? program.external_bytes() : 0);
}

absl::StatusOr<Evaluated> CompileLayout(const v1::JobSpec& spec, const Model& model,
                                        const Budget& budget, const v1::Layout& layout,
                                        int64_t instructions_max) {
  Evaluated evaluated = {.layout = layout};
  ASSIGN_OR_RETURN(evaluated.programs, Compile({.spec = &spec,
                                                .model = &model,
                                                .layout = layout,
                                                .external_bytes = ExternalBytes(budget),
                                                .device_limit_bytes = budget.device_memory_bytes,
                                                .instructions_max = instructions_max}));
  for (const v1::Program& program : evaluated.programs) {
    const auto most = [&program](v1::Tier tier, int64_t* bytes) {
      *bytes = std::max(*bytes, BytesOf(program, tier));
    };
    most(v1::DEVICE, &evaluated.device_bytes);
    most(v1::HOST, &evaluated.host_bytes);
    most(v1::NVME, &evaluated.nvme_bytes);
  }
  evaluated.fits = Excesses(spec, budget, evaluated).empty();
  return evaluated;
}

absl::Status SimulateStep(const v1::HardwareProfile& profile, Evaluated* evaluated) {
  ASSIGN_OR_RETURN(evaluated->simulation, Simulate(evaluated->programs, "train", profile));
  return absl::OkStatus();
}

absl::Status CheckAdmitted(const Budget& budget, const TierLimits& limits, const v1::Layout& layout,
                           std::vector<v1::Program>* programs) {
  for (v1::Program& program : *programs) {
    program.set_device_limit_bytes(budget.device_memory_bytes);
    program.set_host_limit_bytes(limits.host_bytes);
    program.set_nvme_limit_bytes(limits.nvme_bytes);
  }
  const absl::Status status = CheckPrograms(*programs);
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("the checker refuses the programs compiled for ",
                                          LayoutText(layout), ": ", status.message()));
}

absl::StatusOr<Evaluated> Evaluate(const v1::JobSpec& spec, const Model& model,
                                   const Budget& budget, const v1::Layout& layout) {
  ASSIGN_OR_RETURN(Evaluated evaluated, CompileLayout(spec, model, budget, layout));
  if (evaluated.fits)
    RETURN_IF_ERROR(CheckAdmitted(budget, LimitsOf(spec), layout, &evaluated.programs));
  RETURN_IF_ERROR(SimulateStep(budget.profile, &evaluated));
  return evaluated;
}

v1::HardwareProfile ProfileFor(const v1::JobSpec& spec, v1::HardwareProfile profile) {
  const auto most = static_cast<double>(spec.resources().nvme().bytes_per_second());
  if (most <= 0) return profile;
  const TierRates rates = TierRatesOf(profile);
  profile.set_nvme_read_bytes_per_second(std::min(most, rates.nvme_read));
  profile.set_nvme_write_bytes_per_second(std::min(most, rates.nvme_write));
  if (most < std::min(rates.nvme_read, rates.nvme_write)) profile.set_nvme_duplex_ratio(1);
  return profile;
}

std::vector<std::string> Excesses(const v1::JobSpec& spec, const Budget& budget,
                                  const Evaluated& evaluated) {
  const TierLimits limits = LimitsOf(spec);
  std::vector<std::string> excesses;
  const auto check = [&](int64_t bytes, int64_t limit, const char* of_what) {
    if (limit == 0 || bytes <= limit) return;
    excesses.push_back(
        absl::StrCat(FormatBytes(bytes), " (", bytes, " bytes) of ", FormatBytes(limit), of_what));
  };
  check(evaluated.device_bytes, budget.device_memory_bytes, "");
  check(evaluated.host_bytes, limits.host_bytes, " host memory");
  check(evaluated.nvme_bytes, limits.nvme_bytes, " NVMe");
  return excesses;
}

std::string NeedsMore(const v1::JobSpec& spec, const Budget& budget, const Evaluated& evaluated) {
  return absl::StrCat("needs ", absl::StrJoin(Excesses(spec, budget, evaluated), " and "),
                      " per rank");
}

namespace {

absl::Status SetLora(const v1::LoraSpec& spec, ModelConfig* config) {
  if (spec.rank() == 0) return absl::OkStatus();
  const double rank = spec.rank();
  config->lora = {.rank = spec.rank(),
                  .scale = spec.alpha() / (spec.rslora() ? std::sqrt(rank) : rank),
                  .targets = {spec.targets().begin(), spec.targets().end()},
                  .gaussian = spec.init() == "gaussian"};
  config->dropout.adapter = spec.dropout();
  const std::vector<std::string> problems = LoraProblems(*config);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace

absl::StatusOr<Model> ReadModel(const v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(ModelConfig config,
                   ParseModelConfig(spec.model().config_json(), spec.data().sequence_length()));
  const std::string& attention = spec.model().attention();
  if (attention == "full") config.window.assign(config.layers, 0);
  if (attention == "sliding_window") {
    const auto widest = std::max_element(config.window.begin(), config.window.end());
    if (widest == config.window.end() || *widest == 0) {
      return absl::InvalidArgumentError(
          "model.attention: got 'sliding_window', but the model's config uses no sliding window; "
          "try 'config', or set sliding_window in the config.json of a mistral or "
          "starcoder2 model, or it and "
          "use_sliding_window in that of a qwen2 or qwen3 model");
    }
    config.window.assign(config.layers, int64_t{*widest});
  }
  const v1::DropoutSpec& dropout = spec.model().dropout();
  if (dropout.has_embedding()) config.dropout.embedding = dropout.embedding();
  if (dropout.has_residual()) config.dropout.residual = dropout.residual();
  if (dropout.has_attention()) config.dropout.attention = dropout.attention();
  RETURN_IF_ERROR(SetLora(spec.model().lora(), &config));
  return BuildModel(config);
}

}  // namespace terrace
