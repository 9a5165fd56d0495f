// Collective instructions: one call of the group's communicator.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/memory/step_scope.h"
#include "worker/vm/handlers.h"

namespace terrace {

absl::Status Located(const absl::Status& status, const v1::Instruction& instruction) {
  if (status.ok()) return status;
  return InstructionError(status.code(), instruction, std::string(status.message()));
}

absl::StatusOr<Communicator*> GroupOf(const InstructionPreparation& in, uint32_t group) {
  const auto& groups = in.options->groups;
  if (group < groups.size() && groups[group] != nullptr) return groups[group].get();
  return InstructionError(
      absl::StatusCode::kInvalidArgument, *in.source,
      absl::StrCat("rank ", in.options->rank, " is not connected to group ", group));
}

namespace {

constexpr int kBroadcastRoot = 0;

ReduceType TypeOf(const kernels::TensorView& view) {
  if (view.dtype == kernels::DType::kF16) return ReduceType::kF16;
  return view.dtype == kernels::DType::kBF16 ? ReduceType::kBF16 : ReduceType::kF32;
}

// One handler a kind: `call` does the work on the group and the operands.
template <typename Call>
absl::Status Run(const PreparedInstruction& instruction, Call call) {
  const LibraryScope library;
  return Located(call(*instruction.group, instruction.operands), *instruction.source);
}
using Operands = std::vector<kernels::TensorView>;

absl::Status RunAllReduce(const PreparedInstruction& instruction, SequenceIo*) {
  return Run(instruction, [](Communicator& group, const Operands& x) {
    return group.AllReduce(x[0].data, x[0].Elements(), TypeOf(x[0]));
  });
}

absl::Status RunReduceScatter(const PreparedInstruction& instruction, SequenceIo*) {
  return Run(instruction, [](Communicator& group, const Operands& x) {
    return group.ReduceScatter(x[0].data, x[1].data, x[1].Elements(), TypeOf(x[1]));
  });
}

absl::Status RunAllGather(const PreparedInstruction& instruction, SequenceIo*) {
  return Run(instruction, [](Communicator& group, const Operands& x) {
    return group.AllGather(x[0].data, x[1].data, x[0].SpanBytes());
  });
}

absl::Status RunBroadcast(const PreparedInstruction& instruction, SequenceIo*) {
  return Run(instruction, [](Communicator& group, const Operands& x) {
    return group.Broadcast(x[0].data, x[0].SpanBytes(), kBroadcastRoot);
  });
}

absl::Status RunAllToAll(const PreparedInstruction& instruction, SequenceIo*) {
  return Run(instruction, [](Communicator& group, const Operands& x) {
    return group.AllToAll(x[0].data, x[1].data, x[0].SpanBytes() / group.size());
  });
}

absl::Status RunRingShift(const PreparedInstruction& instruction, SequenceIo*) {
  return Run(instruction, [](Communicator& group, const Operands& x) {
    return group.RingShift(x[0].data, x[1].data, x[0].SpanBytes());
  });
}

struct Kind {
  Handler run = nullptr;
  int operands = 0;
  bool sums = false;                // f32, bf16 or f16 only
  int in_parts = 1, out_parts = 1;  // elements of operand 0 and 1 are as in_parts to out_parts
};

Kind KindOf(v1::CollectiveKind kind, int size) {
  switch (kind) {
    case v1::ALL_REDUCE:
      return {RunAllReduce, 1, true};
    case v1::REDUCE_SCATTER:
      return {RunReduceScatter, 2, true, size, 1};
    case v1::ALL_GATHER:
      return {RunAllGather, 2, false, 1, size};
    case v1::BROADCAST:
      return {RunBroadcast, 1};
    case v1::ALL_TO_ALL:
      return {RunAllToAll, 2, false, size, size};
    case v1::RING_SHIFT:
      return {RunRingShift, 2};
    default:
      return {};
  }
}

// Empty when the operands are what program.proto says of the kind.
std::string OperandProblem(const Kind& kind, const Operands& operands) {
  if (static_cast<int>(operands.size()) != kind.operands)
    return absl::StrCat("has ", operands.size(), " operands, must have ", kind.operands);
  for (const kernels::TensorView& view : operands) {
    if (view.absent() || !view.dense()) return "its operands must be dense";
    if (view.dtype != operands[0].dtype) return "its operands must be of one dtype";
    const bool adds = view.dtype == kernels::DType::kF32 || view.dtype == kernels::DType::kBF16 ||
                      view.dtype == kernels::DType::kF16;
    if (kind.sums && !adds) return "a sum must be of f32, bf16 or f16";
  }
  const int64_t in = operands[0].Elements(), out = operands.back().Elements();
  if (kind.operands == 1) return "";
  if (in % kind.in_parts == 0 && out % kind.out_parts == 0 &&
      in / kind.in_parts == out / kind.out_parts) {
    return "";
  }
  return absl::StrCat("its operands have ", in, " and ", out, " elements, must be as ",
                      kind.in_parts, " to ", kind.out_parts, " parts of one size");
}

}  // namespace

absl::Status PrepareCollective(const InstructionPreparation& in, PreparedInstruction* out) {
  const v1::CollectiveOp& collective = in.source->collective();
  ASSIGN_OR_RETURN(out->group, GroupOf(in, collective.group()));
  const Kind kind = KindOf(collective.kind(), out->group->size());
  const std::string problem =
      kind.run == nullptr
          ? absl::StrCat("there is no collective of kind ", static_cast<int>(collective.kind()))
          : OperandProblem(kind, out->operands);
  if (!problem.empty())
    return InstructionError(absl::StatusCode::kInvalidArgument, *in.source, problem);
  out->run = kind.run;
  return absl::OkStatus();
}

}  // namespace terrace
