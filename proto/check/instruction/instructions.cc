// SPDX-License-Identifier: Apache-2.0
#include "proto/check/instruction/instructions.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/sequences.h"

namespace terrace::check {
namespace {

using kernels::TensorShape;

absl::Status CheckPosition(const v1::Program& program, const v1::Sequence& sequence, int position) {
  const v1::Instruction& instruction = sequence.instructions(position);
  const InstructionName where(program, sequence, instruction);
  if (instruction.id() != static_cast<uint32_t>(position)) {
    return Refuse(where, ": stands at position ", position, ", its id must be the same");
  }
  if (instruction.stream() >= static_cast<uint32_t>(program.streams_size())) {
    return Refuse(where, ": stream ", instruction.stream(), " of ", program.streams_size(),
                  " does not exist");
  }
  for (uint32_t wait : instruction.waits()) {
    if (wait >= instruction.id())
      return Refuse(where, ": waits for ", wait, ", which is not earlier");
    if (sequence.instructions(static_cast<int>(wait)).stream() == instruction.stream()) {
      return Refuse(where, ": waits for ", wait,
                    " on its own stream, where order is program order");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTags(const v1::Instruction& instruction, const InstructionName& where) {
  if (!v1::Phase_IsValid(instruction.phase()))
    return Refuse(where, ": phase ", instruction.phase(), " does not exist");
  if (instruction.layer() < -1 || instruction.micro_batch() < -1) {
    return Refuse(where, ": layer ", instruction.layer(), " and micro_batch ",
                  instruction.micro_batch(), " must be -1 (none) or more");
  }
  return absl::OkStatus();
}

bool SameBytes(const Access& a, const Access& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.rows == b.rows &&
         a.row_bytes == b.row_bytes && a.stride_bytes == b.stride_bytes;
}

// An instruction may not write what another of its operands reads or writes, unless its op says so.
absl::Status CheckAliases(const v1::Program& program, const CheckedInstruction& checked,
                          const InstructionName& where) {
  for (size_t i = 0; i < checked.accesses.size(); ++i) {
    for (size_t j = i + 1; j < checked.accesses.size(); ++j) {
      const Access& a = checked.accesses[i];
      const Access& b = checked.accesses[j];
      if (a.buffer != b.buffer || (!a.writes && !b.writes) || !Overlap(a, b)) continue;
      const bool allowed = checked.op.has_value() && SameBytes(a, b) &&
                           MayBeSame(checked.op->op, a.operand, b.operand);
      if (!allowed) {
        return Refuse(where, ": operands ", a.operand, " and ", b.operand, " overlap in ",
                      BufferText(program, a.buffer), ", and one of them is written");
      }
    }
  }
  return absl::OkStatus();
}

// What is kept of texts belongs to attention_cached, which no step of training may use: its content
// is not followed.
absl::Status CheckKept(const v1::Program& program, const v1::Sequence& sequence,
                       const CheckedInstruction& checked, const InstructionName& where) {
  constexpr int kKeys = 3, kValues = 4;
  const bool cached = checked.op.has_value() && checked.op->op == kernels::Op::kAttentionCached;
  if (cached && IsTrain(sequence.name()))
    return Refuse(where, ": keeps keys and values, which no step of training may");
  for (const Access& access : checked.accesses) {
    const bool kept = cached && (access.operand == kKeys || access.operand == kValues);
    const v1::BufferClass buffer_class = program.buffers(static_cast<int>(access.buffer)).class_();
    if (kept == (buffer_class == v1::KEY_VALUE_CACHE)) continue;
    return Refuse(where, ": operand ", access.operand, " lies in ",
                  BufferText(program, access.buffer), " of class ",
                  v1::BufferClass_Name(buffer_class), ": keys and values are kept in buffers of ",
                  v1::BufferClass_Name(v1::KEY_VALUE_CACHE), ", and nothing else is");
  }
  return absl::OkStatus();
}

// `room` is for shapes, and used again.
absl::StatusOr<CheckedInstruction> CheckInstruction(const v1::Program& program,
                                                    const v1::Sequence& sequence, int position,
                                                    std::vector<TensorShape>* room) {
  const v1::Instruction& instruction = sequence.instructions(position);
  InstructionName where(program, sequence, instruction);
  RETURN_IF_ERROR(CheckTags(instruction, where));
  CheckedInstruction checked;
  std::vector<TensorShape>& shapes = *room;
  shapes.assign(instruction.operands_size(), {});
  checked.accesses.reserve(instruction.operands_size() + 1);
  for (int i = 0; i < instruction.operands_size(); ++i) {
    const v1::Operand& operand = instruction.operands(i);
    if (operand.access() == v1::ACCESS_UNSPECIFIED) continue;
    ASSIGN_OR_RETURN(const Access access,
                     CheckOperand(program, sequence, operand, i, where, &shapes[i]));
    checked.accesses.push_back(access);
  }
  if (!checked.accesses.empty()) where.AddBuffer(checked.accesses[0].buffer);
  switch (instruction.kind_case()) {
    case v1::Instruction::kCompute:
      RETURN_IF_ERROR(CheckCompute(program, sequence, instruction, shapes, where, &checked));
      break;
    case v1::Instruction::kCollective:
      RETURN_IF_ERROR(CheckCollective(program, instruction, where));
      break;
    case v1::Instruction::kTransfer:
      RETURN_IF_ERROR(CheckTransfer(program, instruction, where));
      break;
    case v1::Instruction::kInput:
      RETURN_IF_ERROR(CheckInput(instruction, where));
      break;
    case v1::Instruction::kOutput:
      RETURN_IF_ERROR(CheckOutput(instruction, where));
      break;
    case v1::Instruction::kCopy:
      RETURN_IF_ERROR(CheckCopy(program, instruction, checked, where));
      break;
    case v1::Instruction::KIND_NOT_SET:
      return Refuse(where, ": an instruction must do something");
  }
  RETURN_IF_ERROR(CheckKept(program, sequence, checked, where));
  RETURN_IF_ERROR(CheckPlacement(program, instruction, checked, where));
  RETURN_IF_ERROR(CheckAliases(program, checked, where));
  return checked;
}

}  // namespace

const Access* CheckedInstruction::Find(int index) const {
  for (const Access& access : accesses) {
    if (access.operand == index) return &access;
  }
  return nullptr;
}

absl::Status CheckSchedule(const v1::Program& program, const v1::Sequence& sequence) {
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    RETURN_IF_ERROR(CheckPosition(program, sequence, i));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckedSequence> CheckInstructions(const v1::Program& program,
                                                  const v1::Sequence& sequence) {
  CheckedSequence checked;
  checked.sequence = &sequence;
  checked.instructions.reserve(sequence.instructions_size());
  std::vector<TensorShape> room;
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    ASSIGN_OR_RETURN(CheckedInstruction instruction, CheckInstruction(program, sequence, i, &room));
    checked.instructions.push_back(std::move(instruction));
  }
  return checked;
}

}  // namespace terrace::check
