// SPDX-License-Identifier: Apache-2.0
#include "proto/check/instruction/refuse.h"

namespace terrace::check {
namespace {

std::string KindText(const v1::Instruction& instruction) {
  switch (instruction.kind_case()) {
    case v1::Instruction::kCompute:
      return instruction.compute().op();
    case v1::Instruction::kCollective:
      return v1::CollectiveKind_Name(instruction.collective().kind());
    case v1::Instruction::kTransfer:
      return v1::TransferKind_Name(instruction.transfer().kind());
    case v1::Instruction::kInput:
      return v1::InputKind_Name(instruction.input().kind());
    case v1::Instruction::kOutput:
      return v1::OutputKind_Name(instruction.output().kind());
    case v1::Instruction::kCopy:
      return v1::CopyKind_Name(instruction.copy().kind());
    case v1::Instruction::KIND_NOT_SET:
      break;
  }
  return "no operation";
}

}  // namespace

std::string Where(const v1::Sequence& sequence, const v1::Instruction& instruction) {
  return absl::StrCat("instruction ", instruction.id(), " of '", sequence.name(), "' (",
                      KindText(instruction), instruction.text().empty() ? "" : ", ",
                      instruction.text(), ")");
}

std::string InstructionName::operator()() const {
  const std::string where = Where(sequence_, instruction_);
  return buffer_.has_value() ? absl::StrCat(where, " with ", BufferText(program_, *buffer_))
                             : where;
}

std::string BufferText(const v1::Program& program, uint32_t id) {
  const v1::Buffer& buffer = program.buffers(static_cast<int>(id));
  return absl::StrCat("buffer ", buffer.id(), " '", buffer.name(), "'");
}

}  // namespace terrace::check
