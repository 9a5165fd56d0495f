// Transfers between the stages of a pipeline: one message to or from the rank that differs in its
// stage only.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/groups.h"
#include "worker/memory/step_scope.h"
#include "worker/vm/handlers.h"

namespace terrace {
namespace {

absl::Status RunSend(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::TensorView& data = instruction.operands[0];
  const LibraryScope library;
  return Located(instruction.group->Send(data.data, data.SpanBytes(), instruction.peer),
                 *instruction.source);
}

absl::Status RunReceive(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::TensorView& data = instruction.operands[0];
  const LibraryScope library;
  return Located(instruction.group->Receive(data.data, data.SpanBytes(), instruction.peer),
                 *instruction.source);
}

}  // namespace

absl::Status PrepareTransfer(const InstructionPreparation& in, PreparedInstruction* out) {
  const auto refuse = [&in](std::string_view problem) {
    return InstructionError(absl::StatusCode::kInvalidArgument, *in.source, problem);
  };
  const v1::TransferOp& transfer = in.source->transfer();
  ASSIGN_OR_RETURN(out->group, GroupOf(in, transfer.group()));
  out->peer = MemberOfStage(*in.program, in.program->groups(transfer.group()), in.options->rank,
                            transfer.peer_stage());
  if (out->peer < 0) {
    return refuse(absl::StrCat("stage ", transfer.peer_stage(), " has no other rank of its group"));
  }
  if (out->operands.size() != 1 || out->operands[0].absent() || !out->operands[0].dense())
    return refuse("a transfer needs one dense operand");
  switch (transfer.kind()) {
    case v1::SEND:
      out->run = RunSend;
      return absl::OkStatus();
    case v1::RECEIVE:
      out->run = RunReceive;
      return absl::OkStatus();
    default:
      return refuse(
          absl::StrCat("there is no transfer of kind ", static_cast<int>(transfer.kind())));
  }
}

}  // namespace terrace
