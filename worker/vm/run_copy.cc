// Copies between tiers: memory to memory (in a queue by its device), or memory to and from the
// rank's file on NVMe through the queue of the instruction's stream.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/stream_copy.h"
#include "proto/program/tiers.h"
#include "worker/reporting/failure.h"
#include "worker/vm/handlers.h"

namespace terrace {
namespace {

static_assert(kNvmeAlignment == kNvmePageBytes, "programs and files must agree on pages");

// One thread: it runs beside computation on the same cores, and a second one draws no more from
// memory than the first already does.
absl::Status RunMemoryCopy(const PreparedInstruction& instruction, SequenceIo*) {
  const std::vector<kernels::TensorView>& operands = instruction.operands;
  for (size_t i = 0; i < operands.size(); i += 2) {
    kernels::cpu::StreamCopy(operands[i + 1].as<std::byte>(), operands[i].as<std::byte>(),
                             operands[i].SpanBytes());
  }
  return absl::OkStatus();
}

absl::Status LaunchMemoryCopy(const PreparedInstruction& instruction, SequenceIo*) {
  const std::vector<kernels::TensorView>& operands = instruction.operands;
  for (size_t i = 0; i < operands.size(); i += 2) {
    const absl::Status copied =
        instruction.queue->Copy(operands[i + 1].data, operands[i].data, operands[i].SpanBytes());
    if (!copied.ok()) return Located(copied, *instruction.source);
  }
  return absl::OkStatus();
}

absl::Status LocatedNvme(const absl::Status& status, const v1::Instruction& instruction) {
  const absl::Status failure = OfDrive(status);
  return WithReason(Located(failure, instruction), ReasonOf(failure));
}

absl::Status RunNvmeLoad(const PreparedInstruction& instruction, SequenceIo*) {
  return LocatedNvme(instruction.nvme->Transfer(NvmeDirection::kRead, instruction.pieces),
                     *instruction.source);
}

absl::Status RunNvmeStore(const PreparedInstruction& instruction, SequenceIo*) {
  return LocatedNvme(instruction.nvme->Transfer(NvmeDirection::kWrite, instruction.pieces),
                     *instruction.source);
}

struct Kind {
  Handler run = nullptr;
  v1::Tier from = v1::TIER_UNSPECIFIED, to = v1::TIER_UNSPECIFIED;
};

Kind KindOf(v1::CopyKind kind) {
  switch (kind) {
    case v1::TO_DEVICE:
      return {RunMemoryCopy, v1::HOST, v1::DEVICE};
    case v1::TO_HOST:
      return {RunMemoryCopy, v1::DEVICE, v1::HOST};
    case v1::NVME_LOAD:
      return {RunNvmeLoad, v1::NVME, v1::HOST};
    case v1::NVME_STORE:
      return {RunNvmeStore, v1::HOST, v1::NVME};
    default:
      return {};
  }
}

// Empty when the operand is whole pages of its arena, in every iteration.
std::string PageProblem(const InstructionPreparation& in, int operand, int64_t bytes) {
  const v1::Operand& slice = in.source->operands(operand);
  bool whole = bytes % kNvmeAlignment == 0 && slice.offset_step() % kNvmeAlignment == 0;
  const uint32_t end = slice.buffer() + std::max(1U, slice.slots());
  for (uint32_t buffer = slice.buffer(); buffer < end; ++buffer) {
    const int64_t begin = in.program->buffers(static_cast<int>(buffer)).offset() + slice.offset();
    whole = whole && begin % kNvmeAlignment == 0;
  }
  if (whole) return "";
  return absl::StrCat("operand ", operand, " must begin and end on a multiple of ", kNvmeAlignment,
                      " bytes");
}

// Empty when operands `i` and `i` + 1 are what program.proto says of the kind.
std::string PairProblem(const InstructionPreparation& in, const Kind& kind,
                        const PreparedInstruction& copy, int i) {
  const kernels::TensorView &from = copy.operands[i], &to = copy.operands[i + 1];
  if (from.absent() || to.absent() || !from.dense() || !to.dense())
    return "its operands must be dense";
  if (from.dtype != to.dtype || from.Elements() != to.Elements())
    return "operands of a pair must be of one dtype and size";
  const auto tier = [&](int operand) {
    const v1::Buffer& buffer = in.program->buffers(in.source->operands(operand).buffer());
    return in.program->arenas(buffer.arena()).tier();
  };
  if (tier(i) != kind.from || tier(i + 1) != kind.to) {
    return absl::StrCat("copies from ", v1::Tier_Name(tier(i)), " to ", v1::Tier_Name(tier(i + 1)),
                        ", must copy from ", v1::Tier_Name(kind.from), " to ",
                        v1::Tier_Name(kind.to));
  }
  if (kind.from != v1::NVME && kind.to != v1::NVME) return "";
  const std::string problem = PageProblem(in, i, from.SpanBytes());
  return !problem.empty() ? problem : PageProblem(in, i + 1, from.SpanBytes());
}

// What the pair moves between memory and the file, and how that changes with each iteration.
absl::Status AddPiece(const InstructionPreparation& in, int i, bool loads,
                      PreparedInstruction* out) {
  const int far = loads ? i : i + 1, near = loads ? i + 1 : i;
  ASSIGN_OR_RETURN(
      const OperandPlace place,
      PlaceOf(*in.program, *in.loops, static_cast<int>(in.source->id()), in.source->operands(far)));
  const auto piece = static_cast<int>(out->pieces.size());
  out->pieces.push_back({.offset = place.offset,
                         .memory = out->operands[near].as<std::byte>(),
                         .bytes = out->operands[i].SpanBytes()});
  for (Move& move : out->moves) {
    if (move.target != Move::Target::kOperand || (move.index != far && move.index != near))
      continue;
    move.target = move.index == far ? Move::Target::kPieceOffset : Move::Target::kPieceMemory;
    move.index = piece;
  }
  return absl::OkStatus();
}

// The queue of the instruction's stream; null when this rank has no file on NVMe.
NvmeQueue* NvmeOf(const InstructionPreparation& in) {
  const uint32_t stream = in.source->stream();
  return stream < in.nvme_queues.size() ? in.nvme_queues[stream].get() : nullptr;
}

}  // namespace

absl::Status PrepareCopy(const InstructionPreparation& in, PreparedInstruction* out) {
  const auto refuse = [&in](std::string_view problem) {
    return InstructionError(absl::StatusCode::kInvalidArgument, *in.source, problem);
  };
  const Kind kind = KindOf(in.source->copy().kind());
  if (kind.run == nullptr) {
    return refuse(
        absl::StrCat("there is no copy of kind ", static_cast<int>(in.source->copy().kind())));
  }
  if (out->operands.empty() || out->operands.size() % 2 != 0)
    return refuse(absl::StrCat("has ", out->operands.size(), " operands, must have pairs"));
  const bool loads = kind.from == v1::NVME;
  for (int i = 0; i < static_cast<int>(out->operands.size()); i += 2) {
    if (const std::string problem = PairProblem(in, kind, *out, i); !problem.empty())
      return refuse(problem);
    out->copied_bytes += out->operands[i].SpanBytes();
    if (loads || kind.to == v1::NVME) RETURN_IF_ERROR(AddPiece(in, i, loads, out));
  }
  out->run = kind.run == RunMemoryCopy && out->queue != nullptr ? LaunchMemoryCopy : kind.run;
  if (out->pieces.empty()) return absl::OkStatus();
  out->nvme = NvmeOf(in);
  return out->nvme != nullptr ? absl::OkStatus() : refuse("this rank has no file on NVMe");
}

}  // namespace terrace
