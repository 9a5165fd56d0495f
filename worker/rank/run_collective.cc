// Collective instructions: one call of the group's communicator.
//
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/rank/handlers.h"
#include "worker/rank/step_scope.h"

namespace terrace {
namespace {

constexpr int kBroadcastRoot = 0;

// What the group says, with what was being done: a lost or hung peer is found by this line.
absl::Status Located(const absl::Status& status, const v1::Instruction& instruction) {
  if (status.ok()) return status;
  return InstructionError(status.code(), instruction, std::string(status.message()));
}

absl::Status RunAllReduce(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::TensorView& data = instruction.operands[0];
  const ReduceType type =
      data.dtype == kernels::DType::kBF16 ? ReduceType::kBF16 : ReduceType::kF32;
  const LibraryScope gloo;
  return Located(instruction.group->AllReduce(data.data, data.Elements(), type),
                 *instruction.source);
}

absl::Status RunBroadcast(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::TensorView& data = instruction.operands[0];
  const LibraryScope gloo;
  return Located(instruction.group->Broadcast(data.data, data.SpanBytes(), kBroadcastRoot),
                 *instruction.source);
}

}  // namespace

absl::Status PrepareCollective(const InstructionPreparation& in, PreparedInstruction* out) {
  const auto refuse = [&in](std::string_view problem) {
    return InstructionError(absl::StatusCode::kInvalidArgument, *in.source, problem);
  };
  const v1::CollectiveOp& collective = in.source->collective();
  if (collective.group() >= in.options->groups.size()) return refuse("its group is not connected");
  out->group = in.options->groups[collective.group()].get();
  if (out->operands.size() != 1 || !out->operands[0].dense())
    return refuse("a collective needs one dense operand");
  switch (collective.kind()) {
    case v1::ALL_REDUCE: {
      const kernels::DType dtype = out->operands[0].dtype;
      if (dtype != kernels::DType::kF32 && dtype != kernels::DType::kBF16) {
        return refuse("an all-reduce must be of f32 or bf16");
      }
      out->run = RunAllReduce;
      return absl::OkStatus();
    }
    case v1::BROADCAST:
      out->run = RunBroadcast;
      return absl::OkStatus();
    default:
      return refuse(
          absl::StrCat("this rank has no collective ", v1::CollectiveKind_Name(collective.kind())));
  }
}

}  // namespace terrace
