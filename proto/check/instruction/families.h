// Instructions by family: what the rules of each say of its operands. Internal to
// proto/check/instruction/instructions.cc, which has looked at every operand by itself before it
// asks.
//
// `where` names the instruction in refusals. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/op.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/instruction/refuse.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// operands.cc. One operand as bytes; `shape` receives its decoded form.
absl::StatusOr<Access> CheckOperand(const v1::Program& program, const v1::Sequence& sequence,
                                    const v1::Operand& operand, int index,
                                    const InstructionName& where, kernels::TensorShape* shape);

// What one operand of an instruction without an op table entry must be.
struct OperandRule {
  v1::Access access = v1::READ;
  v1::DType dtype = v1::F32;   // DTYPE_UNSPECIFIED: any
  std::vector<int64_t> shape;  // 0: any size
  bool any_shape = false;
  bool optional = false;
};

absl::Status CheckRules(const v1::Instruction& instruction, absl::Span<const OperandRule> rules,
                        const InstructionName& where);
int64_t Elements(const v1::Operand& operand);

// placement.cc. The instruction's stream is one that executes its kind, and its operands lie on the
// tiers that it works on. REQUIRES: the rules of its family hold.
absl::Status CheckPlacement(const v1::Program& program, const v1::Instruction& instruction,
                            const CheckedInstruction& checked, const InstructionName& where);

// compute.cc. Decodes the operation into `checked`.
absl::Status CheckCompute(const v1::Program& program, const v1::Sequence& sequence,
                          const v1::Instruction& instruction,
                          const std::vector<kernels::TensorShape>& shapes,
                          const InstructionName& where, CheckedInstruction* checked);
// Operands of an op that may be the very same memory although one is written (the comments of
// kernels/op.h).
bool MayBeSame(kernels::Op op, int a, int b);

// communication.cc
absl::Status CheckCollective(const v1::Program& program, const v1::Instruction& instruction,
                             const InstructionName& where);
absl::Status CheckTransfer(const v1::Program& program, const v1::Instruction& instruction,
                           const InstructionName& where);

// input_output.cc
absl::Status CheckInput(const v1::Instruction& instruction, const InstructionName& where);
absl::Status CheckOutput(const v1::Instruction& instruction, const InstructionName& where);

// copies.cc
absl::Status CheckCopy(const v1::Program& program, const v1::Instruction& instruction,
                       const CheckedInstruction& checked, const InstructionName& where);

}  // namespace terrace::check
