// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/op.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/grid.h"
#include "proto/program/head_shards.h"
#include "proto/program/op_workspace.h"

namespace terrace::check {
namespace {

using kernels::Op;
using kernels::TensorShape;

// The access that the table asks for, in the program's terms.
v1::Access Expected(kernels::Access access) {
  switch (access) {
    case kernels::Access::kRead:
      return v1::READ;
    case kernels::Access::kWrite:
      return v1::WRITE;
    case kernels::Access::kUpdate:
      return v1::UPDATE;
    case kernels::Access::kNone:
      break;
  }
  return v1::ACCESS_UNSPECIFIED;
}

absl::Status CheckWorkspace(const v1::Program& program, const v1::Sequence& sequence,
                            const v1::ComputeOp& compute, int64_t needed_bytes,
                            const InstructionName& where, CheckedInstruction* checked) {
  const v1::Operand& workspace = compute.workspace();
  if (workspace.access() == v1::ACCESS_UNSPECIFIED) {
    if (needed_bytes == 0) return absl::OkStatus();
    return Refuse(where, ": needs a workspace of ", needed_bytes, " bytes and has none");
  }
  TensorShape shape;
  ASSIGN_OR_RETURN(const Access access,
                   CheckOperand(program, sequence, workspace, kWorkspaceOperand, where, &shape));
  if (workspace.access() != v1::WRITE || workspace.dtype() != v1::U8 || !shape.dense()) {
    return Refuse(where, ": its workspace must be a dense u8 slice with access WRITE");
  }
  if (access.row_bytes < needed_bytes) {
    return Refuse(where, ": needs a workspace of ", needed_bytes, " bytes, ",
                  BufferText(program, access.buffer), " gives it ", access.row_bytes);
  }
  checked->accesses.push_back(access);
  return absl::OkStatus();
}

// Slopes follow from all heads.
absl::Status CheckHeads(const v1::Program& program, const DecodedOp& op,
                        const std::vector<TensorShape>& shapes, const InstructionName& where) {
  if (shapes[0].dims != 3 || HasAllHeads(program.grid(), shapes[0].size[1], op.attrs))
    return absl::OkStatus();
  return Refuse(where, ": its slopes are those of another number of heads than the ",
                shapes[0].size[1], " of each rank make");
}

// Which shard a rank has is its place among the tensor-parallel ranks (ResolveRank): with fewer
// shards it would reach beyond the last place.
absl::Status CheckShards(const v1::Program& program, const DecodedOp& op,
                         const InstructionName& where) {
  const auto* dropout = std::get_if<kernels::DropoutAttrs>(&op.attrs);
  if (dropout == nullptr) return absl::OkStatus();
  const int64_t shards = std::max(dropout->row_shards, dropout->column_shards);
  const int64_t tensor = AxisSize(program.grid(), v1::TENSOR);
  if (shards == 1 || shards == tensor) return absl::OkStatus();
  return Refuse(where, ": drops elements of one of ", shards, " shards, the grid has ", tensor,
                " tensor-parallel ranks");
}

}  // namespace

absl::Status CheckCompute(const v1::Program& program, const v1::Sequence& sequence,
                          const v1::Instruction& instruction,
                          const std::vector<TensorShape>& shapes, const InstructionName& where,
                          CheckedInstruction* checked) {
  absl::StatusOr<DecodedOp> op = DecodeOp(instruction.compute());
  if (!op.ok()) return Refuse(where, ": ", op.status().message());
  const std::string problem = kernels::CheckShapes(op->op, op->attrs, shapes);
  if (!problem.empty()) return Refuse(where, ": ", problem);
  RETURN_IF_ERROR(CheckShards(program, *op, where));
  RETURN_IF_ERROR(CheckHeads(program, *op, shapes, where));
  for (int i = 0; i < instruction.operands_size(); ++i) {
    const v1::Access expected = Expected(kernels::OperandAccess(op->op, op->attrs, i));
    const v1::Access access = instruction.operands(i).access();
    if (access != v1::ACCESS_UNSPECIFIED && access != expected) {
      return Refuse(where, ": operand '", Absl(kernels::OperandName(op->op, i)), "' has access ",
                    v1::Access_Name(access), ", the op table says ", v1::Access_Name(expected));
    }
  }
  const v1::StreamKind stream = program.streams(static_cast<int>(instruction.stream())).kind();
  const int64_t needed_bytes = WorkspaceBytes({.device = program.device(),
                                               .on_host = stream == v1::HOST_COMPUTE,
                                               .threads = static_cast<int>(program.threads())},
                                              op->op, op->attrs, shapes);
  checked->op = *std::move(op);
  return CheckWorkspace(program, sequence, instruction.compute(), needed_bytes, where, checked);
}

// Operands of an op that may be the very same memory although one is written (the comments of
// kernels/op.h).
bool MayBeSame(Op op, int a, int b) {
  const auto is = [&](int x, int y) { return (a == x && b == y) || (a == y && b == x); };
  switch (op) {
    case Op::kLayerNormGrad:
      return is(6, 0) || is(6, 5);
    case Op::kRmsNormGrad:
      return is(5, 0) || is(5, 4);
    case Op::kMatmul:
      return is(2, 4);
    case Op::kGelu:
    case Op::kSoftcap:
      return is(0, 1);
    case Op::kDropout:
      return is(0, 2);
    case Op::kGeluGrad:
      return is(0, 2);
    case Op::kSwigluGrad:
      return is(1, 3) || is(2, 4);
    case Op::kAddResidual:
      return is(3, 0) || is(3, 1);
    default:
      return false;
  }
}

}  // namespace terrace::check
