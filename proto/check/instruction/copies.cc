// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/status_macros.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/tiers.h"

namespace terrace::check {
namespace {

// Each pair is compared with each.
constexpr int kPairsMax = 1024;

absl::Status CheckPair(const v1::Instruction& instruction, int from, const InstructionName& where) {
  const v1::Operand& source = instruction.operands(from);
  const v1::Operand& target = instruction.operands(from + 1);
  const auto refuse = [&](const auto&... rule) {
    return Refuse(where, ": operands ", from, " and ", from + 1, rule...);
  };
  if (source.access() != v1::READ || target.access() != v1::WRITE) {
    return refuse(" must have access READ and WRITE");
  }
  if (source.row_stride() != 0 || target.row_stride() != 0) {
    return refuse(" must be dense");
  }
  if (source.dtype() != target.dtype() || Elements(source) != Elements(target)) {
    return refuse(" hold ", Elements(source), " ", v1::DType_Name(source.dtype()), " and ",
                  Elements(target), " ", v1::DType_Name(target.dtype()), ", must hold the same");
  }
  return absl::OkStatus();
}

// Direct I/O moves whole blocks: on both ends.
absl::Status CheckBlocks(const v1::Program& program, const Access& access,
                         const InstructionName& where) {
  const int64_t begin = program.buffers(access.buffer).offset() + access.offset;
  if (begin % kNvmeAlignment == 0 && access.row_bytes % kNvmeAlignment == 0) {
    return absl::OkStatus();
  }
  return Refuse(where, ": operand ", access.operand, ", bytes [", begin, ", +", access.row_bytes,
                ") of the arena in ", BufferText(program, access.buffer),
                ", must begin and end on multiples of ", kNvmeAlignment);
}

absl::Status CheckApart(const v1::Program& program, const CheckedInstruction& checked,
                        const InstructionName& where) {
  for (size_t i = 0; i < checked.accesses.size(); ++i) {
    for (size_t j = i + 1; j < checked.accesses.size(); ++j) {
      if (!Overlap(checked.accesses[i], checked.accesses[j])) continue;
      return Refuse(where, ": operands ", checked.accesses[i].operand, " and ",
                    checked.accesses[j].operand, " overlap in ",
                    BufferText(program, checked.accesses[i].buffer),
                    ", all of a copy is in flight together");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCopy(const v1::Program& program, const v1::Instruction& instruction,
                       const CheckedInstruction& checked, const InstructionName& where) {
  const v1::CopyKind kind = instruction.copy().kind();
  if (!v1::CopyKind_IsValid(kind) || kind == v1::COPY_UNSPECIFIED) {
    return Refuse(where, ": copy kind ", kind, " does not exist");
  }
  const int operands = instruction.operands_size();
  if (operands < 2 || operands % 2 != 0 || operands > 2 * kPairsMax) {
    return Refuse(where, ": has ", operands, " operands, must have pairs of them, 1 to ",
                  kPairsMax);
  }
  for (int from = 0; from < operands; from += 2) {
    RETURN_IF_ERROR(CheckPair(instruction, from, where));
  }
  if (kind == v1::NVME_LOAD || kind == v1::NVME_STORE) {
    for (const Access& access : checked.accesses) {
      RETURN_IF_ERROR(CheckBlocks(program, access, where));
    }
  }
  return CheckApart(program, checked, where);
}

}  // namespace terrace::check
