// Ways to break a program, for tests of what must notice.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// Gives instructions ids by position again after `moved` (old id -> new id, -1: gone); a wait for
// what is gone is dropped.
inline void Renumber(const std::vector<int>& moved, v1::Sequence* sequence) {
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    v1::Instruction* instruction = sequence->mutable_instructions(i);
    instruction->set_id(i);
    std::vector<uint32_t> waits;
    for (uint32_t wait : instruction->waits()) {
      if (moved[wait] >= 0) waits.push_back(moved[wait]);
    }
    instruction->mutable_waits()->Assign(waits.begin(), waits.end());
  }
}

// The next instruction of its stream inherits what it waited for, so that order stays as it was.
inline void RemoveInstruction(int position, v1::Sequence* sequence) {
  const v1::Instruction gone = sequence->instructions(position);
  std::vector<int> moved;
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    moved.push_back(i == position ? -1 : i > position ? i - 1 : i);
  }
  for (int i = position + 1; i < sequence->instructions_size(); ++i) {
    if (sequence->instructions(i).stream() != gone.stream()) continue;
    sequence->mutable_instructions(i)->mutable_waits()->MergeFrom(gone.waits());
    break;
  }
  sequence->mutable_instructions()->DeleteSubrange(position, 1);
  Renumber(moved, sequence);
}

// A second copy directly behind the first, with the same waits; who waited for the first now waits
// for the second.
inline void RepeatInstruction(int position, v1::Sequence* sequence) {
  std::vector<int> moved;
  for (int i = 0; i < sequence->instructions_size(); ++i)
    moved.push_back(i >= position ? i + 1 : i);
  *sequence->add_instructions() = sequence->instructions(position);
  for (int i = sequence->instructions_size() - 1; i > position + 1; --i) {
    sequence->mutable_instructions()->SwapElements(i, i - 1);
  }
  Renumber(moved, sequence);
}

// The first instruction of this op ("matmul"), or -1.
inline int FindOp(const v1::Sequence& sequence, const std::string& op, int from = 0) {
  for (int i = from; i < sequence.instructions_size(); ++i) {
    if (sequence.instructions(i).compute().op() == op) return i;
  }
  return -1;
}

inline int FindCollective(const v1::Sequence& sequence, int from = 0) {
  for (int i = from; i < sequence.instructions_size(); ++i) {
    if (sequence.instructions(i).has_collective()) return i;
  }
  return -1;
}

}  // namespace terrace
