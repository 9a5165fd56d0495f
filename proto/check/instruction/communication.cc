// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/status_macros.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/grid.h"

namespace terrace::check {
namespace {

// The group exists and this stage is in it.
absl::StatusOr<const v1::Group*> CheckMembership(const v1::Program& program, uint32_t group,
                                                 const InstructionName& where) {
  if (group >= static_cast<uint32_t>(program.groups_size())) {
    return Refuse(where, ": group ", group, " of ", program.groups_size(), " does not exist");
  }
  if (HasStage(program.groups(group), program.stage())) return &program.groups(group);
  return Refuse(where, ": stage ", program.stage(), " is not in group '",
                program.groups(group).name(), "'");
}

// How many parts of equal size the operands of a collective have, and whether it adds.
struct CollectiveRule {
  int64_t parts0 = 1;
  int64_t parts1 = 0;  // 0: there is one operand
  bool sums = false;
};

absl::StatusOr<CollectiveRule> RuleOf(v1::CollectiveKind kind, int64_t members,
                                      const InstructionName& where) {
  switch (kind) {
    case v1::ALL_REDUCE:
      return CollectiveRule{.sums = true};
    case v1::BROADCAST:
      return CollectiveRule{};
    case v1::REDUCE_SCATTER:
      return CollectiveRule{.parts0 = members, .parts1 = 1, .sums = true};
    case v1::ALL_GATHER:
      return CollectiveRule{.parts0 = 1, .parts1 = members};
    case v1::ALL_TO_ALL:
      return CollectiveRule{.parts0 = members, .parts1 = members};
    case v1::RING_SHIFT:
      return CollectiveRule{.parts0 = 1, .parts1 = 1};
    default:
      return Refuse(where, ": collective kind ", kind, " does not exist");
  }
}

}  // namespace

absl::Status CheckCollective(const v1::Program& program, const v1::Instruction& instruction,
                             const InstructionName& where) {
  const v1::CollectiveOp& op = instruction.collective();
  ASSIGN_OR_RETURN(const v1::Group* group, CheckMembership(program, op.group(), where));
  const int64_t members = GroupSize(program.grid(), *group);
  ASSIGN_OR_RETURN(const CollectiveRule rule, RuleOf(op.kind(), members, where));
  const OperandRule any = {.dtype = v1::DTYPE_UNSPECIFIED, .any_shape = true};
  if (rule.parts1 == 0) {
    OperandRule update = any;
    update.access = v1::UPDATE;
    RETURN_IF_ERROR(CheckRules(instruction, {update}, where));
  } else {
    OperandRule write = any;
    write.access = v1::WRITE;
    RETURN_IF_ERROR(CheckRules(instruction, {any, write}, where));
  }
  const v1::Operand& first = instruction.operands(0);
  const v1::Operand& last = instruction.operands(instruction.operands_size() - 1);
  const bool adds =
      first.dtype() == v1::F32 || first.dtype() == v1::BF16 || first.dtype() == v1::F16;
  if (first.dtype() != last.dtype() || (rule.sums && !adds)) {
    return Refuse(where, ": its operands must have one type, f32, bf16 or f16 where it adds");
  }
  if (rule.parts1 == 0) return absl::OkStatus();
  const int64_t part = Elements(first) / rule.parts0;
  if (Elements(first) == part * rule.parts0 && Elements(last) == part * rule.parts1)
    return absl::OkStatus();
  return Refuse(where, ": operands of ", Elements(first), " and ", Elements(last),
                " elements must hold ", rule.parts0, " and ", rule.parts1, " equal parts, group '",
                group->name(), "' having ", members, " ranks");
}

absl::Status CheckTransfer(const v1::Program& program, const v1::Instruction& instruction,
                           const InstructionName& where) {
  const v1::TransferOp& op = instruction.transfer();
  if (op.kind() != v1::SEND && op.kind() != v1::RECEIVE) {
    return Refuse(where, ": transfer kind ", op.kind(), " does not exist");
  }
  ASSIGN_OR_RETURN(const v1::Group* group, CheckMembership(program, op.group(), where));
  if (group->axes_size() != 1 || group->axes(0) != v1::PIPELINE) {
    return Refuse(where, ": group '", group->name(), "' must have the axis PIPELINE only");
  }
  if (op.peer_stage() >= program.stages() || op.peer_stage() == program.stage() ||
      !HasStage(*group, op.peer_stage())) {
    return Refuse(where, ": peer_stage ", op.peer_stage(), " must be another stage of group '",
                  group->name(), "', this is stage ", program.stage(), " of ", program.stages());
  }
  return CheckRules(instruction,
                    {{.access = op.kind() == v1::SEND ? v1::READ : v1::WRITE,
                      .dtype = v1::DTYPE_UNSPECIFIED,
                      .any_shape = true}},
                    where);
}

}  // namespace terrace::check
