// SPDX-License-Identifier: Apache-2.0
#include "coordinator/plan_output.h"

#include "proto/plan_json.h"
#include "proto/plan_text.h"

namespace terrace {

std::string PlanOutput(const Prepared& prepared, double search_seconds, bool json) {
  if (!json) return PlanText(prepared.plan);
  return PlanJson(prepared.plan, {.search_seconds = search_seconds,
                                  .model_name = prepared.model_name,
                                  .error = std::string(prepared.refusal.message())});
}

}  // namespace terrace
