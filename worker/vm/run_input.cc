// Input instructions: values that the outside provides, written straight into the arena; in a queue
// into pinned memory, from which the device copies them.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/program/grid.h"
#include "proto/program/sequences.h"
#include "worker/vm/handlers.h"

namespace terrace {
namespace {

// Empty when the operand is absent.
template <typename T>
std::span<T> Values(const kernels::TensorView& view) {
  if (view.absent()) return {};
  return {view.as<T>(), static_cast<size_t>(view.Elements())};
}

const std::vector<kernels::TensorView>& HostSide(const PreparedInstruction& instruction) {
  return instruction.queue != nullptr ? instruction.staged : instruction.operands;
}

// The staged values stay until the run has ended, or the instruction's next iteration is launched:
// the device has taken them by then.
absl::Status Upload(const PreparedInstruction& instruction, SequenceIo*) {
  for (size_t i = 0; i < instruction.staged.size(); ++i) {
    const kernels::TensorView &to = instruction.operands[i], &from = instruction.staged[i];
    if (to.absent()) continue;
    const absl::Status copied = instruction.queue->Copy(to.data, from.data, to.SpanBytes());
    if (!copied.ok()) return Located(copied, *instruction.source);
  }
  return absl::OkStatus();
}

absl::Status RunLoadBatch(const PreparedInstruction& instruction, SequenceIo* io) {
  const auto& views = HostSide(instruction);
  const auto values = [&views](size_t i) {
    return i < views.size() ? Values<int32_t>(views[i]) : std::span<int32_t>();
  };
  io->LoadBatch(
      instruction.micro_batch,
      {.tokens = values(0), .targets = values(1), .places = values(2), .starts = values(3)});
  return absl::OkStatus();
}

absl::Status RunLoadSchedule(const PreparedInstruction& instruction, SequenceIo* io) {
  const auto& views = HostSide(instruction);
  io->LoadSchedule(Values<float>(views[0]).first<4>());
  if (views.size() > 1) *views[1].as<int32_t>() = io->Updates();
  return absl::OkStatus();
}

absl::Status RunLoadPrompt(const PreparedInstruction& instruction, SequenceIo* io) {
  const auto& views = HostSide(instruction);
  io->LoadPrompt({.tokens = Values<int32_t>(views[0]),
                  .positions = Values<int32_t>(views[1]),
                  .spans = Values<int32_t>(views[2]),
                  .index = Values<int32_t>(views[3])});
  return absl::OkStatus();
}

// `load` writes where the host can; in a queue that is half of it.
absl::Status SetLoad(const InstructionPreparation& in, Handler load, PreparedInstruction* out) {
  out->run = out->queue == nullptr ? load : Upload;
  if (out->queue != nullptr) out->before = load;
  return AddStaging(in, out);
}

bool FitsOne(const kernels::TensorView& view, kernels::DType dtype) {
  return !view.absent() && view.dense() && view.dtype == dtype;
}

bool Fits(const PreparedInstruction& instruction, size_t operands, kernels::DType dtype) {
  return instruction.operands.size() == operands &&
         std::all_of(instruction.operands.begin(), instruction.operands.end(),
                     [dtype](const kernels::TensorView& view) { return FitsOne(view, dtype); });
}

bool FitsPrompt(const PreparedInstruction& instruction) {
  const auto& operands = instruction.operands;
  return Fits(instruction, 4, kernels::DType::kI32) &&
         operands[0].Elements() == operands[1].Elements() && operands[2].Elements() % 2 == 0;
}

bool FitsSchedule(const PreparedInstruction& instruction) {
  const auto& operands = instruction.operands;
  const auto fits = [&](size_t i, kernels::DType dtype, int64_t elements) {
    return FitsOne(operands[i], dtype) && operands[i].Elements() == elements;
  };
  if (operands.empty() || operands.size() > 2 || !fits(0, kernels::DType::kF32, 4)) return false;
  return operands.size() == 1 || fits(1, kernels::DType::kI32, 1);
}

// The tokens of one micro-batch of the sequence that a rank holds.
int64_t BatchTokens(const v1::Program& program, const v1::Sequence& sequence) {
  const v1::StepRules& rules = program.rules();
  return rules.micro_batch() * LengthOf(rules, sequence) / AxisSize(program.grid(), v1::CONTEXT);
}

// The first stage of a pipeline needs no targets, the last one no tokens; places are there where
// something is dropped, starts where sequences hold several documents.
bool FitsBatch(const PreparedInstruction& instruction, int64_t tokens) {
  constexpr size_t kPlaces = 2, kMost = 4;
  const auto& operands = instruction.operands;
  bool any = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].absent()) continue;
    any = true;
    const int64_t elements = i == kPlaces ? 2 * tokens : tokens;
    if (!FitsOne(operands[i], kernels::DType::kI32) || operands[i].Elements() != elements)
      return false;
  }
  return any && operands.size() >= 2 && operands.size() <= kMost;
}

}  // namespace

absl::Status AddStaging(const InstructionPreparation& in, PreparedInstruction* out) {
  if (out->queue == nullptr) return absl::OkStatus();
  for (const kernels::TensorView& view : out->operands) {
    kernels::TensorView& staged = out->staged.emplace_back(view);
    if (view.absent()) continue;
    ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                     in.options->backend->Staging(view.SpanBytes()));
    staged.data = memory.data();
  }
  return absl::OkStatus();
}

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
                                   "], and may have the places of as many tokens and the starts "
                                   "of their documents behind them; all but one may be absent"));
      }
      return SetLoad(in, RunLoadBatch, out);
    case v1::LOAD_SCHEDULE:
      if (!FitsSchedule(*out)) {
        return refuse("load_schedule must have an operand f32[4], and may have i32[1] behind it");
      }
      return SetLoad(in, RunLoadSchedule, out);
    case v1::LOAD_PROMPT:
      if (!FitsPrompt(*out))
        return refuse(
            "load_prompt must have four dense i32 operands: tokens [T], positions [T], "
            "spans [batch,2] and an index [n]");
      return SetLoad(in, RunLoadPrompt, out);
    default:
      return refuse("unknown kind of input");
  }
}

}  // namespace terrace
