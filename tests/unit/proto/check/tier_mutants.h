// The ways to break programs whose memory lies on several tiers: every copy dropped, misdirected or
// moved, every update of the optimizer given what belongs to another chunk.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/tensor_view.h"
#include "tests/unit/proto/check/mutants.h"

namespace terrace {

inline int64_t ElementsOf(const v1::Operand& operand) {
  int64_t elements = 1;
  for (int64_t size : operand.shape()) elements *= size;
  return elements;
}

inline v1::BufferClass ClassOf(const v1::Program& program, const v1::Operand& operand) {
  return program.buffers(static_cast<int>(operand.buffer())).class_();
}

// Whether a copy moves what the optimizer or a product with weights depends on; what is kept of
// activations is known by kind, not by name.
inline bool MovesState(const v1::Program& program, const v1::Instruction& copy) {
  for (const v1::Operand& operand : copy.operands()) {
    const v1::BufferClass kind = ClassOf(program, operand);
    if (kind == v1::PARAMETER || kind == v1::OPTIMIZER || kind == v1::GRADIENT) return true;
  }
  return false;
}

inline void ForEachCopy(
    const Programs& programs,
    const std::function<void(size_t stage, int sequence, const v1::Instruction&)>& visit) {
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    if (instruction.has_copy() && MovesState(programs[stage], instruction)) {
      visit(stage, q, instruction);
    }
  });
}

inline std::vector<Mutant> WithoutACopy(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachCopy(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    mutants.push_back(Dropped(stage, q, instruction));
  });
  return mutants;
}

// Two copies of one kind and size that follow one another exchange where they come from, or where
// they go to.
inline std::vector<Mutant> WithSwappedCopies(const Programs& programs) {
  std::vector<Mutant> mutants;
  std::map<std::tuple<size_t, int, int64_t>, v1::Instruction> last;
  ForEachCopy(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    const std::tuple key = {stage, instruction.copy().kind(), ElementsOf(instruction.operands(0))};
    const auto before = last.find(key);
    if (before != last.end()) {
      for (int end : {0, 1}) {
        const v1::Operand& x = before->second.operands(end);
        const v1::Operand& y = instruction.operands(end);
        if (x.buffer() == y.buffer() && x.offset() == y.offset()) continue;
        const int a = static_cast<int>(before->second.id());
        const int b = static_cast<int>(instruction.id());
        mutants.push_back({absl::StrCat(NameOf(stage, instruction), ": ",
                                        end == 0 ? "source" : "target", " swapped with ", a),
                           stage, [q, a, b, end](v1::Program* program) {
                             v1::Sequence* sequence = program->mutable_sequences(q);
                             sequence->mutable_instructions(a)->mutable_operands(end)->Swap(
                                 sequence->mutable_instructions(b)->mutable_operands(end));
                           }});
      }
    }
    last[key] = instruction;
  });
  return mutants;
}

// Every end of every copy a page further on, or back.
inline std::vector<Mutant> WithACopyShifted(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachCopy(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    for (int k = 0; k < instruction.operands_size(); ++k) {
      for (int64_t by : {int64_t{4096}, int64_t{-4096}}) {
        mutants.push_back(Changed(stage, q, instruction,
                                  absl::StrCat("operand ", k, " moved by ", by),
                                  [k, by](v1::Instruction* i) {
                                    v1::Operand* o = i->mutable_operands(k);
                                    o->set_offset(o->offset() + by);
                                  }));
      }
    }
  });
  return mutants;
}

// Every copy moves a page less: of numbers as many as gradients are padded to.
inline std::vector<Mutant> WithAShorterCopy(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachCopy(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    const bool shorts = instruction.operands(0).dtype() == static_cast<int>(kernels::DType::kBF16);
    const int64_t page = shorts ? 2048 : 1024;  // elements
    if (ElementsOf(instruction.operands(0)) <= page) return;
    mutants.push_back(Changed(stage, q, instruction, "a page shorter", [page](v1::Instruction* i) {
      for (v1::Operand& operand : *i->mutable_operands()) {
        const int64_t elements = ElementsOf(operand) - page;
        operand.clear_shape();
        operand.add_shape(elements);
      }
    }));
  });
  return mutants;
}

// Every optimizer op takes one operand of the op before it, where that is as long.
inline std::vector<Mutant> WithAnUpdateOfAnother(const Programs& programs) {
  std::vector<Mutant> mutants;
  std::map<std::pair<size_t, int64_t>, v1::Instruction> last;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    if (instruction.compute().op() != "update") return;
    const std::pair key = {stage, ElementsOf(instruction.operands(0))};
    const auto before = last.find(key);
    if (before != last.end()) {
      for (int k = 0; k < 4; ++k) {
        const v1::Operand other = before->second.operands(k);
        const v1::Operand& own = instruction.operands(k);
        if (other.buffer() == own.buffer() && other.offset() == own.offset()) continue;
        mutants.push_back(
            Changed(stage, q, instruction, absl::StrCat("operand ", k, " of ", before->second.id()),
                    [k, other](v1::Instruction* i) { *i->mutable_operands(k) = other; }));
      }
    }
    last[key] = instruction;
  });
  return mutants;
}

}  // namespace terrace
