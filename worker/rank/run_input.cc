// Input instructions: values that the outside provides, written straight into the arena.
//
// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "worker/rank/handlers.h"

namespace terrace {
namespace {

template <typename T>
std::span<T> Values(const kernels::TensorView& view) {
  return {view.as<T>(), static_cast<size_t>(view.Elements())};
}

absl::Status RunLoadBatch(const PreparedInstruction& instruction, SequenceIo* io) {
  io->LoadBatch(instruction.source->micro_batch(), Values<int32_t>(instruction.operands[0]),
                Values<int32_t>(instruction.operands[1]));
  return absl::OkStatus();
}

absl::Status RunLoadSchedule(const PreparedInstruction& instruction, SequenceIo* io) {
  io->LoadSchedule(Values<float>(instruction.operands[0]).first<4>());
  return absl::OkStatus();
}

absl::Status RunLoadPrompt(const PreparedInstruction& instruction, SequenceIo* io) {
  io->LoadPrompt(Values<int32_t>(instruction.operands[0]),
                 Values<int32_t>(instruction.operands[1]));
  return absl::OkStatus();
}

bool Fits(const PreparedInstruction& instruction, size_t operands, kernels::DType dtype) {
  if (instruction.operands.size() != operands) return false;
  for (const kernels::TensorView& view : instruction.operands) {
    if (view.absent() || !view.dense() || view.dtype != dtype) return false;
  }
  return true;
}

}  // namespace

absl::Status PrepareInput(const InstructionPreparation& in, PreparedInstruction* out) {
  const auto refuse = [&in](std::string_view problem) {
    return InstructionError(absl::StatusCode::kInvalidArgument, *in.source, problem);
  };
  switch (in.source->input().kind()) {
    case v1::LOAD_BATCH:
      if (!Fits(*out, 2, kernels::DType::kI32) ||
          out->operands[0].Elements() != out->operands[1].Elements() ||
          in.source->micro_batch() < 0) {
        return refuse("load_batch must have a micro-batch and two dense i32 operands of one size");
      }
      out->run = RunLoadBatch;
      return absl::OkStatus();
    case v1::LOAD_SCHEDULE:
      if (!Fits(*out, 1, kernels::DType::kF32) || out->operands[0].Elements() != 4) {
        return refuse("load_schedule must have one operand f32[4]");
      }
      out->run = RunLoadSchedule;
      return absl::OkStatus();
    case v1::LOAD_PROMPT:
      if (!Fits(*out, 2, kernels::DType::kI32))
        return refuse("load_prompt must have two dense i32 operands");
      out->run = RunLoadPrompt;
      return absl::OkStatus();
    default:
      return refuse("unknown kind of input");
  }
}

}  // namespace terrace
