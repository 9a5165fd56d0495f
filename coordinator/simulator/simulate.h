// Executes the programs of all stages on a time model instead of machines: discrete events over
// streams, transfers and collectives (joint_run.h), each instruction taking what instruction_time.h
// says. Gives the step time and what the compute streams wait for.
//
// A stage's step is divided without remainder into what its compute stream does: it is busy, or it
// idles. Idle seconds are traced back, instruction by instruction, along what they waited for, also
// into other stages. Seconds in which that chain moved bytes between stages, or among the ranks of
// this stage, are exposed communication; those in which another stage worked are bubble, its own
// collectives included; those in which this stage copied between tiers or computed on the host are
// exposed offload; those in which it worked on other streams are loading. After its last
// instruction a stage waits for the one that ends the step.
//
// Of programs with loops the stages play together a step of few iterations, and then longer ones
// until each further iteration takes all streams the same: seconds are those of the whole step,
// `instructions` those of the shortest play. Where that never comes, seconds are as exact as the
// longest play tells.
//
// Instructions that run at the same time slow each other down where they share a link between tiers
// or, on the CPU backend, cores (contention.h): then computation is longer for what runs beside it,
// and nothing is hidden for free.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/simulator/joint_run.h"
#include "proto/program/play_order.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct SimulatedStream {
  std::string name;
  double busy_seconds = 0;       // over step_seconds: its utilisation
  double optimizer_seconds = 0;  // part of busy_seconds
};
struct SimulatedStage {
  uint32_t stage = 0;
  double compute_seconds = 0;  // busy; with the next four it is the step
  double exposed_communication_seconds = 0;
  double exposed_offload_seconds = 0;
  double bubble_seconds = 0;
  double loading_seconds = 0;
  double optimizer_seconds = 0;                             // part of compute_seconds
  double exposed_optimizer_seconds = 0;                     // part of exposed_offload_seconds
  double bubble_ratio = 0;                                  // bubble over compute
  std::array<double, v1::Phase_ARRAYSIZE> phase_seconds{};  // of compute_seconds, by v1::Phase
  std::vector<SimulatedStream> streams;
  // In the order of a PlayedProgram that lacks Simulation::left_out iterations.
  std::vector<PlayedInstruction> played;
  std::vector<RunInstruction> instructions;  // by place in it; `after` counts the programs given
};
struct Simulation {
  double step_seconds = 0;
  double played_seconds = 0;  // until the last of `instructions` has ended
  int64_t left_out = 0;       // iterations of each loop that `played` and `instructions` lack
  // Of the stage that computes longest, that communicates longest and so on.
  double compute_seconds = 0;
  double exposed_communication_seconds = 0;
  double exposed_offload_seconds = 0;
  double optimizer_seconds = 0;
  double bubble_ratio = 0;  // all stages' bubbles over all stages' compute
  std::vector<SimulatedStage> stages;
};

// INVALID_ARGUMENT when the sequence does not exist, an op does not decode or a stage is given
// twice; FAILED_PRECONDITION when the stages wait for each other. Transfers with a stage that is
// not among `stages` never wait for it.
absl::StatusOr<Simulation> Simulate(absl::Span<const v1::Program> stages, std::string_view sequence,
                                    const v1::HardwareProfile& profile);
// Of one stage alone.
absl::StatusOr<Simulation> Simulate(const v1::Program& program, std::string_view sequence,
                                    const v1::HardwareProfile& profile);

}  // namespace terrace
