// Compute instructions: a kernel on resolved operands, of the CPU or, in a queue, of its device.
//
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "proto/program/grid.h"
#include "proto/program/head_shards.h"
#include "proto/program/op_codec.h"
#include "worker/vm/handlers.h"
#include "worker/vm/rounding_parts.h"

namespace terrace {
namespace {

constexpr int kWeights = 1;  // operand of an update

absl::Status RunCompute(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::Status status =
      instruction.kernel(instruction.attrs, instruction.operands, instruction.context);
  if (status.ok()) return absl::OkStatus();
  return InstructionError(absl::StatusCode::kInternal, *instruction.source, status.message);
}

absl::Status LaunchCompute(const PreparedInstruction& instruction, SequenceIo*) {
  return Located(instruction.queue->Compute(instruction), *instruction.source);
}

absl::Status PrepareWorkspace(const InstructionPreparation& in, PreparedInstruction* out) {
  const v1::Operand& workspace = in.source->compute().workspace();
  const auto id = static_cast<int>(in.source->id());
  ASSIGN_OR_RETURN(const OperandPlace place, PlaceOf(*in.program, *in.loops, id, workspace));
  std::byte* const arena = in.options->arenas[place.arena];
  if (arena == nullptr)
    return absl::InvalidArgumentError("its workspace lies on NVMe, must be in memory");
  out->context.workspace = arena + place.offset;
  ASSIGN_OR_RETURN(const kernels::TensorShape shape, DecodeShape(workspace));
  out->context.workspace_bytes = shape.SpanBytes();
  auto move = MoveOf(*in.program, *in.loops, id, workspace, in.options->arenas);
  if (!move.has_value()) return absl::OkStatus();
  move->target = Move::Target::kWorkspace;
  out->moves.push_back(*std::move(move));
  return absl::OkStatus();
}

// Which elements are rounded with which bits is settled when the program is prepared.
absl::Status PrepareRounding(const InstructionPreparation& in, const Coordinates& rank,
                             PreparedInstruction* out) {
  for (const Move& move : out->moves) {
    if (move.target != Move::Target::kOperand || move.index != kWeights) continue;
    return absl::InvalidArgumentError(
        "updates other weights in each iteration of a loop, which stochastic rounding cannot");
  }
  auto& attrs = std::get<kernels::UpdateAttrs>(out->attrs);
  return ResolveRounding(*in.program, rank, out->operands[kWeights].Elements(), &attrs.rounding);
}

}  // namespace

absl::Status PrepareCompute(const InstructionPreparation& in, PreparedInstruction* out) {
  const v1::ComputeOp& compute = in.source->compute();
  ASSIGN_OR_RETURN(DecodedOp decoded, DecodeOp(compute));
  out->attrs = decoded.attrs;
  if (out->queue != nullptr) {
    out->run = LaunchCompute;
    RETURN_IF_ERROR(Located(out->queue->PrepareCompute(decoded.op, out), *in.source));
  } else {
    out->run = RunCompute;
    out->kernel = kernels::cpu::Find(decoded.op);
  }
  const Coordinates rank = CoordinatesOf(in.program->grid(), in.options->rank);
  ResolveRank(rank, &out->attrs);
  if (!out->operands.empty() && out->operands[0].dims == 3)
    ResolveHeads(in.program->grid(), rank, out->operands[0].size[1], &out->attrs);
  if (decoded.op == kernels::Op::kUpdateStochastic)
    RETURN_IF_ERROR(Located(PrepareRounding(in, rank, out), *in.source));
  const v1::StreamKind stream = in.program->streams(in.source->stream()).kind();
  out->context.threads =
      stream == v1::COMPUTE || stream == v1::HOST_COMPUTE ? in.options->threads : 1;
  if (compute.workspace().access() == v1::ACCESS_UNSPECIFIED) return absl::OkStatus();
  return Located(PrepareWorkspace(in, out), *in.source);
}

}  // namespace terrace
