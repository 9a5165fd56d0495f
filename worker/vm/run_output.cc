// Output instructions: hands values of the arena to the outside; in a queue the device copies them
// to pinned memory first.
//
// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "worker/vm/handlers.h"

namespace terrace {
namespace {

void Hand(const PreparedInstruction& instruction, const kernels::TensorView& view, SequenceIo* io) {
  io->Output(instruction.source->output().kind(),
             std::span<const float>(view.as<float>(), static_cast<size_t>(view.Elements())));
}

absl::Status RunOutput(const PreparedInstruction& instruction, SequenceIo* io) {
  Hand(instruction, instruction.operands[0], io);
  return absl::OkStatus();
}

absl::Status LaunchOutput(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::TensorView& from = instruction.operands[0];
  return Located(instruction.queue->Copy(instruction.staged[0].data, from.data, from.SpanBytes()),
                 *instruction.source);
}

absl::Status FinishOutput(const PreparedInstruction& instruction, SequenceIo* io) {
  Hand(instruction, instruction.staged[0], io);
  return absl::OkStatus();
}

// Values that every output of the kind must have at least; 0: unknown kind.
int64_t MinimumElements(v1::OutputKind kind) {
  switch (kind) {
    case v1::STEP_STATS:
      return 4;
    case v1::LOSS_TOTAL:
    case v1::PREFERENCE:
      return 2;
    case v1::LOGITS:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

absl::Status PrepareOutput(const InstructionPreparation& in, PreparedInstruction* out) {
  const int64_t elements = MinimumElements(in.source->output().kind());
  if (elements == 0 || out->operands.size() != 1 ||
      out->operands[0].dtype != kernels::DType::kF32 || !out->operands[0].dense() ||
      out->operands[0].Elements() < elements) {
    return InstructionError(
        absl::StatusCode::kInvalidArgument, *in.source,
        "an output must be of a known kind and have one dense f32 operand of its size");
  }
  out->run = out->queue == nullptr ? RunOutput : LaunchOutput;
  if (out->queue != nullptr) out->finish = FinishOutput;
  return AddStaging(in, out);
}

}  // namespace terrace
