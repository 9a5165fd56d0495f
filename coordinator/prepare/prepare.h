// Spec -> model -> plan -> programs, checked and simulated: the coordinator's table of contents, on
// one page.
//
// Pure: what it needs of the outside (the text of config.json, the hardware) comes in. The same
// input gives the same bytes. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/what_fits.h"
#include "coordinator/simulator/simulate.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct Prepared {
  v1::Plan plan;
  std::vector<v1::Program> programs;  // one a stage
  Simulation simulation;              // of "train", whose stages are those of the programs
  std::string model_name;  // as the spec calls it (ModelName of proto/report/plan_json.h)
  absl::Status refusal;    // OK unless it comes from PrepareAnyway()
};

// What Prepare() refuses however fast the hardware is, so that nothing has to be measured first:
// INVALID_ARGUMENT of the model, and of a layout that nothing can respect. The budget needs no
// profile.
absl::Status CheckSpec(const v1::JobSpec& spec, const Budget& budget);

// INVALID_ARGUMENT: the spec or the model is wrong. RESOURCE_EXHAUSTED: nothing fits, and the
// message has the bytes and the cheapest change that fits; or the plan wears the drives out too
// soon.
// DEADLINE_EXCEEDED: `in_time` ended it.
absl::StatusOr<Prepared> Prepare(const v1::JobSpec& spec, const Budget& budget,
                                 const InTime& in_time = {});

// The same to look at: when nothing fits, the plan of the layout that comes nearest, with fits
// false, and what would fit as its alternatives; `refusal` is what Prepare() would return.
// `in_time` ends only the trying of changes, so that there is a plan in any case.
absl::StatusOr<Prepared> PrepareAnyway(const v1::JobSpec& spec, const Budget& budget,
                                       const TellSearch& tell = {}, const InTime& in_time = {});

// The same to be compared with others: of what does not fit nothing but by how much is said, so it
// takes no longer than what fits. A job that only fits by changes within its spec (what_fits.h)
// does not fit here.
absl::StatusOr<Prepared> PrepareToCompare(const v1::JobSpec& spec, const Budget& budget,
                                          const InTime& in_time = {});

}  // namespace terrace
