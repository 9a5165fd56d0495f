// The checker's second part: each instruction by itself. Its stream, waits and operands exist;
// operands lie inside their buffers; its operation has the operands, access, shapes and workspace
// that its table asks for (families.h), on the tier where its stream executes it.
//
// Out: what the later parts compute with: decoded operations, and operands as bytes. Thread-safe:
// no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/check/instruction/written.h"
#include "proto/program/op_codec.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

inline constexpr int kWorkspaceOperand = -1;

// The bytes of one operand: `rows` pieces of `row_bytes`, `stride_bytes` apart, from `offset` in
// the buffer on. A dense operand is one row.
struct Access {
  uint32_t buffer = 0;
  int64_t offset = 0;
  int64_t rows = 1;
  int64_t row_bytes = 0;
  int64_t stride_bytes = 0;
  bool reads = false;
  bool writes = false;
  int operand = 0;  // index, or kWorkspaceOperand

  int64_t end() const { return offset + (rows - 1) * stride_bytes + row_bytes; }
};

struct CheckedInstruction {
  std::optional<DecodedOp> op;   // of a compute instruction
  std::vector<Access> accesses;  // absent operands left out

  // Null when operand `index` is absent.
  const Access* Find(int index) const;
};

struct CheckedSequence {
  const v1::Sequence* sequence = nullptr;  // borrowed from the program
  std::vector<CheckedInstruction> instructions;
  const WrittenSequence* written = nullptr;  // of a program with loops; borrowed, too
};

// Ids equal positions, streams exist, waits point to earlier instructions of other streams.
// REQUIRES: CheckStructure passed.
absl::Status CheckSchedule(const v1::Program& program, const v1::Sequence& sequence);
// Of a program without loops or one that was written out. REQUIRES: CheckSchedule passed.
absl::StatusOr<CheckedSequence> CheckInstructions(const v1::Program& program,
                                                  const v1::Sequence& sequence);

// Whether any byte belongs to both.
bool Overlap(const Access& a, const Access& b);

}  // namespace terrace::check
