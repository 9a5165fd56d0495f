// One layout, exactly: compiled, checked, simulated. What the search compares and what a plan
// reports.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/model/model.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/simulate.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Bytes of a CPU rank outside its arenas: the process, its libraries and their threads' stacks,
// gloo's buffers. About 17 MB was measured from outside on tiny
// and 10 M models; the rest is room for larger groups. A test says when it grows.
inline constexpr int64_t kCpuExternalBytes = int64_t{160} << 20;

struct Evaluated {
  v1::Layout layout;
  std::vector<v1::Program> programs;  // one a stage
  Simulation simulation;              // of "train"
  int64_t device_bytes = 0;           // arenas and external of the largest stage
  bool fits = false;                  // into the budget; only what fits was checked
};

// INTERNAL when the checker refuses what the compiler made.
absl::StatusOr<Evaluated> Evaluate(const v1::JobSpec& spec, const Model& model,
                                   const Budget& budget, const v1::Layout& layout);

// "config" leaves the windows of config.json, "full" removes them, "sliding_window" gives every
// layer the model's window.
absl::StatusOr<Model> ReadModel(const v1::JobSpec& spec);

}  // namespace terrace
