// SPDX-License-Identifier: Apache-2.0
#include "coordinator/plan_output.h"

#include "coordinator/prepare/memory_report.h"
#include "proto/plan_json.h"
#include "proto/plan_text.h"

namespace terrace {

std::string PlanOutput(const Prepared& prepared, double search_seconds, bool json) {
  if (!json) return PlanText(prepared.plan);
  PlanJsonExtras extras = {.search_seconds = search_seconds,
                           .max_by_class = {},
                           .model_name = prepared.model_name,
                           .error = std::string(prepared.refusal.message())};
  for (const v1::Program& program : prepared.programs) {
    for (const v1::Arena& arena : program.arenas()) {
      extras.max_by_class.push_back(MaximaOf(program, arena));
    }
  }
  return PlanJson(prepared.plan, extras);
}

}  // namespace terrace
