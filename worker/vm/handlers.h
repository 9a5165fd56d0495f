// One family of instructions, one file: how it is prepared from the program and what a stream's
// thread then calls.
//
// Prepare* fills kernel, attributes, group and handler; operands, and how they move, are resolved
// before.
// INVALID_ARGUMENT with the instruction's text when it cannot run here. The handlers are
// thread-compatible: each stream executes its own instructions.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/program/loops.h"
#include "proto/v1/program.pb.h"
#include "worker/vm/prepared_program.h"

namespace terrace {

struct InstructionPreparation {
  const v1::Program* program = nullptr;
  const v1::Instruction* source = nullptr;
  const PrepareOptions* options = nullptr;
  NvmeQueues nvme_queues;
  const v1::Sequence* sequence = nullptr;
  const LoopIndex* loops = nullptr;
};

absl::Status PrepareCompute(const InstructionPreparation& in,
                            PreparedInstruction* out);  // run_compute.cc
absl::Status PrepareCollective(const InstructionPreparation& in,
                               PreparedInstruction* out);  // run_collective.cc
absl::Status PrepareTransfer(const InstructionPreparation& in,
                             PreparedInstruction* out);  // run_transfer.cc
absl::Status PrepareCopy(const InstructionPreparation& in,
                         PreparedInstruction* out);  // run_copy.cc
absl::Status PrepareInput(const InstructionPreparation& in,
                          PreparedInstruction* out);  // run_input.cc
absl::Status PrepareOutput(const InstructionPreparation& in,
                           PreparedInstruction* out);  // run_output.cc

// "instruction 17 (matmul layer 3 c_fc): <problem>".
absl::Status InstructionError(absl::StatusCode code, const v1::Instruction& instruction,
                              std::string_view problem);
// What a group says, with what was being done: a lost or hung peer is found by this line.
absl::Status Located(const absl::Status& status, const v1::Instruction& instruction);
// The same with the iteration in which it was done; a status outside of loops stays as it is.
absl::Status InIteration(const absl::Status& status, const PlayedCursor& at);
// Gives an input or output in a queue the host's side of its operands.
absl::Status AddStaging(const InstructionPreparation& in, PreparedInstruction* out);
// The connection of Program.groups[group]. INVALID_ARGUMENT when this rank has none.
absl::StatusOr<Communicator*> GroupOf(const InstructionPreparation& in, uint32_t group);

}  // namespace terrace
