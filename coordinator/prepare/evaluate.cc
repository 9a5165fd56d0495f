// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/evaluate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/prepare/layout_text.h"
#include "proto/program_check.h"

namespace terrace {
namespace {

int64_t DeviceBytes(const v1::Program& program) {
  int64_t bytes = program.external_bytes();
  for (const v1::Arena& arena : program.arenas()) {
    if (arena.tier() == v1::DEVICE) bytes += arena.bytes();
  }
  return bytes;
}

absl::Status CheckAdmitted(int64_t limit_bytes, const v1::Layout& layout,
                           std::vector<v1::Program>* programs) {
  for (v1::Program& program : *programs) program.set_device_limit_bytes(limit_bytes);
  const absl::Status status = CheckPrograms(*programs);
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("the checker refuses the programs compiled for ",
                                          LayoutText(layout), ": ", status.message()));
}

}  // namespace

absl::StatusOr<Evaluated> Evaluate(const v1::JobSpec& spec, const Model& model,
                                   const Budget& budget, const v1::Layout& layout) {
  Evaluated evaluated = {.layout = layout};
  ASSIGN_OR_RETURN(
      evaluated.programs,
      Compile(
          {.spec = &spec, .model = &model, .layout = layout, .external_bytes = kCpuExternalBytes}));
  for (const v1::Program& program : evaluated.programs) {
    evaluated.device_bytes = std::max(evaluated.device_bytes, DeviceBytes(program));
  }
  evaluated.fits =
      budget.device_memory_bytes == 0 || evaluated.device_bytes <= budget.device_memory_bytes;
  if (evaluated.fits)
    RETURN_IF_ERROR(CheckAdmitted(budget.device_memory_bytes, layout, &evaluated.programs));
  ASSIGN_OR_RETURN(evaluated.simulation, Simulate(evaluated.programs, "train", budget.profile));
  return evaluated;
}

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
          "try 'config', or set "
          "sliding_window (and use_sliding_window) in config.json");
    }
    config.window.assign(config.layers, int64_t{*widest});
  }
  return BuildModel(config);
}

}  // namespace terrace
