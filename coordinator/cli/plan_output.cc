// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/plan_output.h"

#include "proto/report/layer_report.h"
#include "proto/report/plan_json.h"
#include "proto/report/plan_text.h"

namespace terrace {

std::string PlanOutput(const Prepared& prepared, double search_seconds, bool json, bool by_layer) {
  std::vector<LayerMemory> layers;
  if (by_layer) {
    // Programs that were just checked do not contradict themselves.
    if (auto found = LayersOfPrograms(prepared.programs); found.ok()) layers = *std::move(found);
  }
  const v1::Layout& layout = prepared.plan.layout();
  if (!json) {
    return PlanText(prepared.plan) +
           (layers.empty() ? "" : "\n" + LayerText(layers, layout, "at the peak"));
  }
  return PlanJson(prepared.plan, {.search_seconds = search_seconds,
                                  .model_name = prepared.model_name,
                                  .error = std::string(prepared.refusal.message()),
                                  .layers = by_layer ? LayerJson(layers, layout) : ""});
}

}  // namespace terrace
