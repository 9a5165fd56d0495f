// Executes programs on a time model instead of a machine: discrete events over streams and links,
// each instruction taking FLOPs over rate plus bytes over bandwidth plus an overhead, collectives
// by the ring formula. Gives the step time and what of the communication is exposed. Pure and
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct SimulatedInstruction {
  double start_seconds = 0;
  double end_seconds = 0;
};
struct Simulation {
  double step_seconds = 0;
  double compute_seconds = 0;                // busy time of the compute stream
  double exposed_communication_seconds = 0;  // compute stream idle while waiting for a collective
  double optimizer_seconds = 0;
  std::vector<SimulatedInstruction> instructions;  // by id
};

// INVALID_ARGUMENT when the sequence does not exist or an op does not decode.
absl::StatusOr<Simulation> Simulate(const v1::Program& program, std::string_view sequence,
                                    const v1::HardwareProfile& profile);

}  // namespace terrace
