// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/status_macros.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/tiers.h"

namespace terrace::check {
namespace {

std::string StreamText(const v1::Program& program, const v1::Instruction& instruction) {
  const v1::Stream& stream = program.streams(static_cast<int>(instruction.stream()));
  return absl::StrCat("stream ", instruction.stream(), " '", stream.name(), "', which is ",
                      v1::StreamKind_Name(stream.kind()));
}

absl::Status CheckTier(const v1::Program& program, const Access& access, v1::Tier tier,
                       const InstructionName& where) {
  const v1::Buffer& buffer = program.buffers(static_cast<int>(access.buffer));
  if (TierOf(program, buffer) == tier) return absl::OkStatus();
  return Refuse(where, ": ",
                access.operand == kWorkspaceOperand ? "the workspace"
                                                    : absl::StrCat("operand ", access.operand),
                " in ", BufferText(program, access.buffer), " lies on ",
                v1::Tier_Name(TierOf(program, buffer)), ", must lie on ", v1::Tier_Name(tier));
}

absl::Status CheckAllOn(const v1::Program& program, const CheckedInstruction& checked,
                        v1::Tier tier, const InstructionName& where) {
  for (const Access& access : checked.accesses) {
    RETURN_IF_ERROR(CheckTier(program, access, tier, where));
  }
  return absl::OkStatus();
}

absl::Status CheckComputePlacement(const v1::Program& program, const v1::Instruction& instruction,
                                   const CheckedInstruction& checked,
                                   const InstructionName& where) {
  switch (program.streams(static_cast<int>(instruction.stream())).kind()) {
    case v1::COMPUTE:
      return CheckAllOn(program, checked, v1::DEVICE, where);
    case v1::HOST_COMPUTE:
      return CheckAllOn(program, checked, v1::HOST, where);
    default:
      return Refuse(where, ": computes on ", StreamText(program, instruction),
                    ", must be COMPUTE or HOST_COMPUTE");
  }
}

struct CopyRule {
  v1::StreamKind stream;
  v1::Tier from;
  v1::Tier to;
};

CopyRule RuleOf(v1::CopyKind kind) {
  switch (kind) {
    case v1::TO_DEVICE:
      return {v1::HOST_TO_DEVICE, v1::HOST, v1::DEVICE};
    case v1::TO_HOST:
      return {v1::DEVICE_TO_HOST, v1::DEVICE, v1::HOST};
    case v1::NVME_LOAD:
      return {v1::NVME_READ, v1::NVME, v1::HOST};
    default:
      return {v1::NVME_WRITE, v1::HOST, v1::NVME};
  }
}

absl::Status CheckCopyPlacement(const v1::Program& program, const v1::Instruction& instruction,
                                const CheckedInstruction& checked, const InstructionName& where) {
  const CopyRule rule = RuleOf(instruction.copy().kind());
  const v1::StreamKind stream = program.streams(static_cast<int>(instruction.stream())).kind();
  if (stream != rule.stream) {
    return Refuse(where, ": copies on ", StreamText(program, instruction), ", must be ",
                  v1::StreamKind_Name(rule.stream));
  }
  for (const Access& access : checked.accesses) {
    RETURN_IF_ERROR(CheckTier(program, access, access.writes ? rule.to : rule.from, where));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlacement(const v1::Program& program, const v1::Instruction& instruction,
                            const CheckedInstruction& checked, const InstructionName& where) {
  switch (instruction.kind_case()) {
    case v1::Instruction::kCompute:
      return CheckComputePlacement(program, instruction, checked, where);
    case v1::Instruction::kCopy:
      return CheckCopyPlacement(program, instruction, checked, where);
    default:  // what meets others: libraries and files see device memory only
      return CheckAllOn(program, checked, v1::DEVICE, where);
  }
}

}  // namespace terrace::check
