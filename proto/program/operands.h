// All operands of an instruction, its workspace included.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "proto/v1/program.pb.h"

namespace terrace {

// visit(const v1::Operand&), of absent ones too; the workspace, where there is one, comes last.
template <typename Visit>
void ForEachOperand(const v1::Instruction& instruction, Visit visit) {
  for (const v1::Operand& operand : instruction.operands()) visit(operand);
  if (instruction.compute().has_workspace()) visit(instruction.compute().workspace());
}

// visit(v1::Operand*).
template <typename Visit>
void ForEachMutableOperand(v1::Instruction* instruction, Visit visit) {
  for (v1::Operand& operand : *instruction->mutable_operands()) visit(&operand);
  if (instruction->compute().has_workspace())
    visit(instruction->mutable_compute()->mutable_workspace());
}

}  // namespace terrace
