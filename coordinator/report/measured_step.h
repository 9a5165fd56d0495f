// The last step of a rank's measured timeline, to be drawn beside the simulated one.
//
// In: the trace as ranks write it (worker/train/trace.h), and the programs of its job. Out: when
// each instruction ran. Text from a rank is not trusted: what is not such a trace is refused, and
// instructions that the program does not have are left out.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/prepare/prepare.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct MeasuredInstruction {
  const v1::Instruction* instruction = nullptr;  // of the program
  int micro_batch = -1;
  double start_seconds = 0, end_seconds = 0;  // since the step began
};
struct MeasuredStep {
  uint32_t rank = 0;
  int stage = 0;     // index in Prepared.programs
  int64_t step = 0;  // from 0 on, as traces count them
  double seconds = 0;
  std::vector<MeasuredInstruction> instructions;
};

// Borrows the programs. DATA_LOSS: it is no trace, or of no step of these programs.
absl::StatusOr<MeasuredStep> ReadMeasuredStep(std::string_view trace, const Prepared& prepared);

}  // namespace terrace
