// Compute instructions: a kernel on resolved operands, of the CPU or, in a queue, of its device.
//
// SPDX-License-Identifier: Apache-2.0
#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "proto/grid.h"
#include "proto/op_codec.h"
#include "worker/rank/handlers.h"
#include "worker/rank/rounding_parts.h"

namespace terrace {
namespace {

absl::Status RunCompute(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::Status status =
      instruction.kernel(instruction.attrs, instruction.operands, instruction.context);
  if (status.ok()) return absl::OkStatus();
  return InstructionError(absl::StatusCode::kInternal, *instruction.source, status.message);
}

absl::Status LaunchCompute(const PreparedInstruction& instruction, SequenceIo*) {
  return Located(instruction.queue->Compute(instruction), *instruction.source);
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
  if (decoded.op == kernels::Op::kAdamwStochastic) {
    auto& attrs = std::get<kernels::AdamwAttrs>(out->attrs);
    RETURN_IF_ERROR(
        Located(ResolveRounding(*in.program, rank, out->operands[1].Elements(), &attrs.rounding),
                *in.source));
  }
  const v1::StreamKind stream = in.program->streams(in.source->stream()).kind();
  out->context.threads =
      stream == v1::COMPUTE || stream == v1::HOST_COMPUTE ? in.options->threads : 1;
  if (compute.workspace().access() != v1::ACCESS_UNSPECIFIED) {
    const v1::Buffer& buffer = in.program->buffers(compute.workspace().buffer());
    std::byte* const arena = in.options->arenas[buffer.arena()];
    if (arena == nullptr) {
      return InstructionError(absl::StatusCode::kInvalidArgument, *in.source,
                              "its workspace lies on NVMe, must be in memory");
    }
    out->context.workspace = arena + buffer.offset() + compute.workspace().offset();
    ASSIGN_OR_RETURN(const kernels::TensorShape shape, DecodeShape(compute.workspace()));
    out->context.workspace_bytes = shape.SpanBytes();
  }
  return absl::OkStatus();
}

}  // namespace terrace
