// All the ways to break the programs of a job in one place that a checker must notice: for each
// kind of mutation, every mutant there is. Programs come from anywhere.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/program/grid.h"
#include "tests/unit/proto/check/mutate.h"

namespace terrace {

using Programs = std::vector<v1::Program>;
struct Mutant {
  std::string what;
  size_t stage = 0;
  std::function<void(v1::Program*)> apply;
};

// Whether the groups have the same members on every rank.
inline bool SameMembers(const v1::Program& program, int a, int b) {
  for (uint32_t rank = 0; rank < program.ranks(); ++rank) {
    if (GroupMembers(program.grid(), program.groups(a), rank) !=
        GroupMembers(program.grid(), program.groups(b), rank))
      return false;
  }
  return true;
}
// Two operands of the instruction share bytes: without it the other one is read instead.
inline bool IsInPlace(const v1::Instruction& instruction) {
  for (int a = 0; a < instruction.operands_size(); ++a) {
    const v1::Operand& x = instruction.operands(a);
    if (x.access() == v1::UPDATE) return true;
    for (int b = 0; b < a; ++b) {
      const v1::Operand& y = instruction.operands(b);
      if (x.buffer() == y.buffer() && (x.access() == v1::WRITE || y.access() == v1::WRITE) &&
          x.access() != v1::ACCESS_UNSPECIFIED && y.access() != v1::ACCESS_UNSPECIFIED)
        return true;
    }
  }
  return false;
}
inline bool IsAccumulation(const v1::Instruction& instruction) {
  const v1::ComputeOp& op = instruction.compute();
  return op.matmul().accumulate() || op.accumulate().accumulate() || op.norm().accumulate() ||
         op.loss().accumulate() || op.op() == "embedding_grad" || op.op() == "add";
}

// Calls `visit` for every instruction of every stage's "train".
inline void ForEachInstruction(
    const Programs& programs,
    const std::function<void(size_t stage, int sequence, const v1::Instruction&)>& visit) {
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    for (int q = 0; q < programs[stage].sequences_size(); ++q) {
      if (programs[stage].sequences(q).name() != "train") continue;
      for (const v1::Instruction& instruction : programs[stage].sequences(q).instructions()) {
        visit(stage, q, instruction);
      }
    }
  }
}

inline std::string NameOf(size_t stage, const v1::Instruction& instruction) {
  return absl::StrCat("stage ", stage, " instruction ", instruction.id(), " ", instruction.text());
}

// Changes the instruction in its place.
inline Mutant Changed(size_t stage, int q, const v1::Instruction& instruction, std::string how,
                      std::function<void(v1::Instruction*)> change) {
  const int id = static_cast<int>(instruction.id());
  return {absl::StrCat(NameOf(stage, instruction), ": ", how), stage,
          [q, id, change = std::move(change)](v1::Program* program) {
            change(program->mutable_sequences(q)->mutable_instructions(id));
          }};
}
inline Mutant Dropped(size_t stage, int q, const v1::Instruction& instruction) {
  const int id = static_cast<int>(instruction.id());
  return {absl::StrCat(NameOf(stage, instruction), ": dropped"), stage,
          [q, id](v1::Program* program) { RemoveInstruction(id, program->mutable_sequences(q)); }};
}
inline Mutant Repeated(size_t stage, int q, const v1::Instruction& instruction) {
  const int id = static_cast<int>(instruction.id());
  return {absl::StrCat(NameOf(stage, instruction), ": twice"), stage,
          [q, id](v1::Program* program) { RepeatInstruction(id, program->mutable_sequences(q)); }};
}

// Every wait that orders something that nothing else orders.
inline std::vector<Mutant> WithoutAWait(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    for (int w = 0; w < instruction.waits_size(); ++w) {
      mutants.push_back(Changed(
          stage, q, instruction, absl::StrCat("wait for ", instruction.waits(w), " removed"),
          [w](v1::Instruction* i) { i->mutable_waits()->erase(i->mutable_waits()->begin() + w); }));
    }
  });
  return mutants;
}

// Every two sends that follow one another in a channel change places.
inline std::vector<Mutant> WithSwappedSends(const Programs& programs) {
  std::vector<Mutant> mutants;
  std::map<std::tuple<size_t, uint32_t, uint32_t>, v1::Instruction> last;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    if (instruction.transfer().kind() != v1::SEND) return;
    const std::tuple channel = {stage, instruction.transfer().group(),
                                instruction.transfer().peer_stage()};
    const auto before = last.find(channel);
    if (before != last.end()) {
      const int a = static_cast<int>(before->second.id()), b = static_cast<int>(instruction.id());
      const auto swap = [q, a, b](bool with_labels) {
        return [q, a, b, with_labels](v1::Program* program) {
          v1::Instruction* x = program->mutable_sequences(q)->mutable_instructions(a);
          v1::Instruction* y = program->mutable_sequences(q)->mutable_instructions(b);
          x->mutable_operands()->Swap(y->mutable_operands());
          if (!with_labels) return;
          const int32_t micro_batch = x->micro_batch();
          x->set_micro_batch(y->micro_batch());
          y->set_micro_batch(micro_batch);
        };
      };
      const std::string what = absl::StrCat(NameOf(stage, instruction), ": swapped with ", a);
      mutants.push_back({what, stage, swap(false)});
      mutants.push_back({what + ", labels too", stage, swap(true)});
    }
    last[channel] = instruction;
  });
  return mutants;
}

inline std::vector<Mutant> WithoutACommunication(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    if (!instruction.has_collective() && !instruction.has_transfer()) return;
    mutants.push_back(Dropped(stage, q, instruction));
  });
  return mutants;
}

// Every sum over ranks, every transfer and every contribution to a gradient happens twice.
inline std::vector<Mutant> WithASumTwice(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    const bool sum = instruction.collective().kind() == v1::ALL_REDUCE;
    const bool gradient =
        IsAccumulation(instruction) &&
        std::any_of(instruction.operands().begin(), instruction.operands().end(),
                    [&](const v1::Operand& operand) {
                      return operand.access() == v1::UPDATE &&
                             programs[stage].buffers(operand.buffer()).class_() == v1::GRADIENT;
                    });
    if (sum || instruction.has_transfer() || gradient) {
      mutants.push_back(Repeated(stage, q, instruction));
    }
  });
  return mutants;
}

// Every communication in every other group, on that group's stream.
inline std::vector<Mutant> InAnotherGroup(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    if (!instruction.has_collective() && !instruction.has_transfer()) return;
    const uint32_t own = instruction.has_collective() ? instruction.collective().group()
                                                      : instruction.transfer().group();
    for (int g = 0; g < programs[stage].groups_size(); ++g) {
      if (SameMembers(programs[stage], g, static_cast<int>(own))) continue;
      // The stream that carries the other group, so that only the group is wrong.
      uint32_t stream = instruction.stream();
      for (const v1::Instruction& other : programs[stage].sequences(q).instructions()) {
        if (instruction.has_collective() && other.has_collective() &&
            other.collective().group() == static_cast<uint32_t>(g)) {
          stream = other.stream();
        }
      }
      const int id = static_cast<int>(instruction.id());
      mutants.push_back({absl::StrCat(NameOf(stage, instruction), ": in group ", g), stage,
                         [q, id, g, stream](v1::Program* program) {
                           v1::Sequence* sequence = program->mutable_sequences(q);
                           v1::Instruction* i = sequence->mutable_instructions(id);
                           if (i->has_collective()) i->mutable_collective()->set_group(g);
                           if (i->has_transfer()) i->mutable_transfer()->set_group(g);
                           i->set_stream(stream);
                           DropWaitsInsideStreams(sequence);
                         }});
    }
  });
  return mutants;
}

// A micro-batch is loaded twice, received as another, or not at all.
inline std::vector<Mutant> WithMicroBatchesMixed(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    const bool load = instruction.input().kind() == v1::LOAD_BATCH;
    if (!load && !instruction.has_transfer()) return;
    const int count = static_cast<int>(programs[stage].rules().micro_batches());
    for (int other : {(instruction.micro_batch() + 1) % count, count, -1}) {
      if (other == instruction.micro_batch()) continue;
      mutants.push_back(Changed(stage, q, instruction, absl::StrCat("as micro-batch ", other),
                                [other](v1::Instruction* i) { i->set_micro_batch(other); }));
    }
    if (load) mutants.push_back(Dropped(stage, q, instruction));
  });
  return mutants;
}

// Every operation reads the same of another micro-batch.
inline std::vector<Mutant> WithAnotherMicroBatch(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    for (int k = 0; k < instruction.operands_size(); ++k) {
      const v1::Operand& operand = instruction.operands(k);
      if (operand.access() != v1::READ) continue;
      const std::string& name = programs[stage].buffers(operand.buffer()).name();
      const size_t at = name.find("mb1.");
      if (at == std::string::npos) continue;
      std::string twin = name;
      twin[at + 2] = '0';
      for (const v1::Buffer& buffer : programs[stage].buffers()) {
        if (buffer.name() != twin || buffer.sequence() != "train") continue;
        const uint32_t id = buffer.id();
        mutants.push_back(
            Changed(stage, q, instruction, absl::StrCat("operand ", k, " is ", twin),
                    [k, id](v1::Instruction* i) { i->mutable_operands(k)->set_buffer(id); }));
      }
    }
  });
  return mutants;
}

// Every operation is left out that computes something new. (What changes its input in place leaves
// it as it was: content that was never made cannot be told from content that was.)
inline std::vector<Mutant> WithoutAnOperation(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    const bool in_place = IsInPlace(instruction) && !IsAccumulation(instruction) &&
                          instruction.compute().op() != "update";
    if (instruction.has_compute() && !in_place) mutants.push_back(Dropped(stage, q, instruction));
  });
  return mutants;
}

// Which bytes of a buffer an operation takes decides about numbers only, where it reads weights or
// activations, or changes activations in place.
inline bool IsOfNumbers(const v1::Program& program, const v1::Operand& operand) {
  const v1::BufferClass kind = program.buffers(static_cast<int>(operand.buffer())).class_();
  if (kind == v1::ACTIVATION) return operand.access() != v1::WRITE;
  return kind == v1::PARAMETER && operand.access() == v1::READ;
}

// Every other operand is moved by an element.
inline std::vector<Mutant> WithAnOffsetShifted(const Programs& programs) {
  std::vector<Mutant> mutants;
  ForEachInstruction(programs, [&](size_t stage, int q, const v1::Instruction& instruction) {
    for (int k = 0; k < instruction.operands_size(); ++k) {
      const v1::Operand& operand = instruction.operands(k);
      if (operand.access() == v1::ACCESS_UNSPECIFIED || IsOfNumbers(programs[stage], operand))
        continue;
      const int64_t element = operand.dtype() == v1::BF16 ? 2 : 4;
      for (int64_t by : {element, -element}) {
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

}  // namespace terrace
