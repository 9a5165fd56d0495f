// Input instructions: values that the outside provides, written straight into the arena.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "worker/rank/handlers.h"

namespace terrace {
namespace {

// Empty when the operand is absent.
template <typename T>
std::span<T> Values(const kernels::TensorView& view) {
  if (view.absent()) return {};
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

bool FitsOne(const kernels::TensorView& view, kernels::DType dtype) {
  return !view.absent() && view.dense() && view.dtype == dtype;
}

bool Fits(const PreparedInstruction& instruction, size_t operands, kernels::DType dtype) {
  return instruction.operands.size() == operands &&
         std::all_of(instruction.operands.begin(), instruction.operands.end(),
                     [dtype](const kernels::TensorView& view) { return FitsOne(view, dtype); });
}

// The first stage of a pipeline needs no targets, the last one no tokens.
bool FitsBatch(const PreparedInstruction& instruction) {
  if (instruction.operands.size() != 2) return false;
  const kernels::TensorView &tokens = instruction.operands[0], &targets = instruction.operands[1];
  const auto fits = [](const kernels::TensorView& view) {
    return view.absent() || FitsOne(view, kernels::DType::kI32);
  };
  if (!fits(tokens) || !fits(targets) || (tokens.absent() && targets.absent())) return false;
  return tokens.absent() || targets.absent() || tokens.Elements() == targets.Elements();
}

}  // namespace

absl::Status PrepareInput(const InstructionPreparation& in, PreparedInstruction* out) {
  const auto refuse = [&in](std::string_view problem) {
    return InstructionError(absl::StatusCode::kInvalidArgument, *in.source, problem);
  };
  switch (in.source->input().kind()) {
    case v1::LOAD_BATCH:
      if (!FitsBatch(*out) || in.source->micro_batch() < 0) {
        return refuse(
            "load_batch must have a micro-batch and two dense i32 operands of one size, of which "
            "one may be absent");
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
