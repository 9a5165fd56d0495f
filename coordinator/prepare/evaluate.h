// One layout, exactly: compiled, checked, simulated. What a search compares and a plan reports.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/model/model.h"
#include "coordinator/planner/planner.h"
#include "coordinator/simulator/simulate.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Bytes of a CPU rank outside its arenas: the process, its libraries and their threads' stacks,
// gloo's buffers. About 17 MB was measured from outside on tiny
// and 10 M models; the rest is room for larger groups. A test says when it grows.
inline constexpr int64_t kCpuExternalBytes = int64_t{96} << 20;

// What a rank is given outside its arenas: the larger of that and of what was learned.
int64_t ExternalBytes(const Budget& budget);

struct Evaluated {
  v1::Layout layout;
  std::vector<v1::Program> programs;  // one a stage
  Simulation simulation;              // of "train"
  int64_t device_bytes = 0;           // arena and external of the largest stage
  int64_t host_bytes = 0;  // arenas on the other tiers, each of the stage with the largest
  int64_t nvme_bytes = 0;
  bool fits = false;  // into the budget of every tier
};

// The profile with what resources.nvme slows down.
v1::HardwareProfile ProfileFor(const v1::JobSpec& spec, v1::HardwareProfile profile);

// What a rank needs and may have of each tier whose budget it exceeds, as "3.2 GiB (3442368000
// bytes) of 2.5 GiB host memory"; empty when it fits.
std::vector<std::string> Excesses(const v1::JobSpec& spec, const Budget& budget,
                                  const Evaluated& evaluated);

// The same as a sentence's end: "needs 3.2 GiB (...) of 2.5 GiB host memory per rank".
std::string NeedsMore(const v1::JobSpec& spec, const Budget& budget, const Evaluated& evaluated);

// Checked when it fits. INTERNAL when the checker refuses what the compiler made.
absl::StatusOr<Evaluated> Evaluate(const v1::JobSpec& spec, const Model& model,
                                   const Budget& budget, const v1::Layout& layout);

// Parts of it: compiled and its bytes counted, but neither checked nor simulated. INVALID_ARGUMENT
// when the layout cannot be compiled, RESOURCE_EXHAUSTED when it takes more than
// `instructions_max`, if that is not 0.
absl::StatusOr<Evaluated> CompileLayout(const v1::JobSpec& spec, const Model& model,
                                        const Budget& budget, const v1::Layout& layout,
                                        int64_t instructions_max = 0);
// Fills `simulation`.
absl::Status SimulateStep(const v1::HardwareProfile& profile, Evaluated* evaluated);
// The bytes that a rank of the stage reserves on the tier; those outside its arenas count on the
// device.
int64_t BytesOf(const v1::Program& program, v1::Tier tier);
// Gives the programs, which fit, the limits and checks them. INTERNAL when the checker refuses.
absl::Status CheckAdmitted(const Budget& budget, const TierLimits& limits, const v1::Layout& layout,
                           std::vector<v1::Program>* programs);

// "config" leaves the windows of config.json, "full" removes them, "sliding_window" gives every
// layer the model's window. With the adapters of model.lora.
absl::StatusOr<Model> ReadModel(const v1::JobSpec& spec);

}  // namespace terrace
