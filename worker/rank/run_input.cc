// Input instructions: values that the outside provides, written straight into the arena.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "proto/grid.h"
#include "proto/sequences.h"
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

// The tokens of one micro-batch of the sequence that a rank holds.
int64_t BatchTokens(const v1::Program& program, const v1::Sequence& sequence) {
  const v1::StepRules& rules = program.rules();
  return rules.micro_batch() * LengthOf(rules, sequence) / AxisSize(program.grid(), v1::CONTEXT);
}

// The first stage of a pipeline needs no targets, the last one no tokens.
bool FitsBatch(const PreparedInstruction& instruction, int64_t tokens) {
  const auto& operands = instruction.operands;
  return operands.size() == 2 && !(operands[0].absent() && operands[1].absent()) &&
         std::all_of(operands.begin(), operands.end(), [tokens](const kernels::TensorView& view) {
           return view.absent() ||
                  (FitsOne(view, kernels::DType::kI32) && view.Elements() == tokens);
         });
}

}  // namespace

absl::Status PrepareInput(const InstructionPreparation& in, PreparedInstruction* out) {
  const auto refuse = [&in](std::string_view problem) {
    return InstructionError(absl::StatusCode::kInvalidArgument, *in.source, problem);
  };
  switch (in.source->input().kind()) {
    case v1::LOAD_BATCH:
      if (!FitsBatch(*out, BatchTokens(*in.program, *in.sequence)) ||
          in.source->micro_batch() < 0) {
        return refuse(absl::StrCat("load_batch must have a micro-batch and two dense operands i32[",
                                   BatchTokens(*in.program, *in.sequence),
                                   "], of which one may be absent"));
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
