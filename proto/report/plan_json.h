// A plan as JSON, for scripts: the message with its own field names, integers as numbers, and the
// names that job specs use beside them (layout.dp, zero, gradient_accumulation, ...). Names are
// only ever added; docs/formats.md lists those that others build on. The same plan gives the same
// bytes.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct PlanJsonExtras {
  double search_seconds = 0;    // measured by who called the planner
  std::string model_name = {};  // empty: the family's
  std::string error = {};       // why the job is refused; empty: it is not
  std::string layers = {};      // LayerJson() of its programs; empty: not asked for
};
// What a spec calls its model: the preset's name, of a config.json its folder, of another file its
// name without the ending; of a model that stands in the spec itself its family.
std::string ModelName(const v1::ModelSpec& model, const std::string& family);

// Ends with a newline.
std::string PlanJson(const v1::Plan& plan, const PlanJsonExtras& extras = {});

}  // namespace terrace
