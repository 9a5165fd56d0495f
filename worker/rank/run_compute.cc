// Compute instructions: a kernel of the CPU backend on resolved operands.
//
// SPDX-License-Identifier: Apache-2.0
#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "proto/grid.h"
#include "proto/op_codec.h"
#include "worker/rank/handlers.h"

namespace terrace {
namespace {

absl::Status RunCompute(const PreparedInstruction& instruction, SequenceIo*) {
  const kernels::Status status =
      instruction.kernel(instruction.attrs, instruction.operands, instruction.context);
  if (status.ok()) return absl::OkStatus();
  return InstructionError(absl::StatusCode::kInternal, *instruction.source, status.message);
}

}  // namespace

absl::Status PrepareCompute(const InstructionPreparation& in, PreparedInstruction* out) {
  const v1::ComputeOp& compute = in.source->compute();
  ASSIGN_OR_RETURN(DecodedOp decoded, DecodeOp(compute));
  out->run = RunCompute;
  out->kernel = kernels::cpu::Find(decoded.op);
  out->attrs = decoded.attrs;
  ResolveRank(CoordinatesOf(in.program->grid(), in.options->rank), &out->attrs);
  const bool on_compute_stream = in.program->streams(in.source->stream()).kind() == v1::COMPUTE;
  out->context.threads = on_compute_stream ? in.options->threads : 1;
  if (compute.workspace().access() != v1::ACCESS_UNSPECIFIED) {
    const v1::Buffer& buffer = in.program->buffers(compute.workspace().buffer());
    out->context.workspace =
        in.options->arenas[buffer.arena()] + buffer.offset() + compute.workspace().offset();
    ASSIGN_OR_RETURN(const kernels::TensorShape shape, DecodeShape(compute.workspace()));
    out->context.workspace_bytes = shape.SpanBytes();
  }
  return absl::OkStatus();
}

}  // namespace terrace
