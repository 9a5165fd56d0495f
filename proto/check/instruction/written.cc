// SPDX-License-Identifier: Apache-2.0
#include "proto/check/instruction/written.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/program/loops.h"

namespace terrace::check {
namespace {

template <typename Visit>
void ForEachOperand(const v1::Instruction& instruction, Visit visit) {
  for (const v1::Operand& operand : instruction.operands()) {
    if (operand.access() != v1::ACCESS_UNSPECIFIED) visit(operand);
  }
  if (instruction.compute().has_workspace()) visit(instruction.compute().workspace());
}

// What the body of a loop touches, and who touches it behind the loop.
void AddBuffers(const v1::Program& program, const v1::Sequence& sequence, const v1::Loop& loop,
                const WrittenOut& out, Repeat* repeat) {
  std::set<uint32_t> plain, arrays;
  std::map<uint32_t, Repeat::Slots> slots;  // by first buffer
  const auto end = static_cast<int>(loop.first() + loop.count());
  for (auto i = static_cast<int>(loop.first()); i < sequence.instructions_size(); ++i) {
    ForEachOperand(sequence.instructions(i), [&](const v1::Operand& operand) {
      if (operand.slots() > 0) {
        if (i >= end && !slots.contains(operand.buffer())) return;
        const Repeat::Slots made = {.first = operand.buffer(), .least = operand.slot()};
        Repeat::Slots& known = slots.try_emplace(operand.buffer(), made).first->second;
        known.least = std::min<int64_t>(known.least, operand.slot());
      } else if (i < end) {
        (operand.offset_step() != 0 ? arrays : plain).insert(operand.buffer());
      }
    });
  }
  for (size_t k = 0; k < out.values.size(); ++k) {
    const auto known = slots.find(out.values[k].first);
    if (known == slots.end()) continue;
    known->second.values[out.values[k].number] =
        static_cast<uint32_t>(program.buffers_size() + static_cast<int>(k));
  }
  for (auto& [first, of_first] : slots) repeat->slots.push_back(std::move(of_first));
  repeat->plain.assign(plain.begin(), plain.end());
  repeat->arrays.assign(arrays.begin(), arrays.end());
}

std::vector<Repeat> RepeatsOf(const v1::Program& program, const v1::Sequence& sequence,
                              const WrittenOut& out, int64_t left_out) {
  std::vector<Repeat> repeats;
  int64_t more = 0;  // instructions before, of iterations behind the first
  for (int k = 0; k < sequence.loops_size(); ++k) {
    const v1::Loop& loop = sequence.loops(k);
    Repeat repeat = {.loop = k,
                     .begin = static_cast<int>(loop.first() + more),
                     .count = static_cast<int>(loop.count()),
                     .shown = int64_t{loop.trips()} - left_out,
                     .left_out = left_out,
                     .micro_batches = loop.micro_batches()};
    more += (repeat.shown - 1) * repeat.count;
    AddBuffers(program, sequence, loop, out, &repeat);
    repeats.push_back(std::move(repeat));
  }
  return repeats;
}

// Iterations of the second half are counted from the end.
std::string IterationText(const Repeat& repeat, int64_t iteration) {
  const bool early = iteration < (repeat.shown + 1) / 2;
  return absl::StrCat("iteration ", early ? iteration : iteration + repeat.left_out);
}

void NameAsInOriginal(const v1::Sequence& sequence, const WrittenSequence& written,
                      const std::vector<WrittenOut::Played>& played, v1::Sequence* to) {
  const LoopIndex index(sequence);
  for (int p = 0; p < to->instructions_size(); ++p) {
    v1::Instruction* instruction = to->mutable_instructions(p);
    const auto& [id, iteration] = played[p];
    instruction->set_id(id);
    instruction->set_micro_batch(index.MicroBatchOf(id, iteration));
    if (const int loop = index.LoopOf(id); loop != kNoLoop) {
      instruction->set_text(absl::StrCat(instruction->text(),
                                         instruction->text().empty() ? "" : ", ",
                                         IterationText(written.repeats[loop], iteration)));
    }
  }
}

}  // namespace

Written WriteForCheck(const v1::Program& program, int64_t left_out) {
  WrittenOut out = WriteOut(program, left_out);
  Written written;
  for (int q = 0; q < program.sequences_size(); ++q) {
    const v1::Sequence& sequence = program.sequences(q);
    written.sequences.push_back({.repeats = RepeatsOf(program, sequence, out, left_out),
                                 .played = PlayedInstructions(sequence)});
    NameAsInOriginal(sequence, written.sequences.back(), out.played[q],
                     out.program.mutable_sequences(q));
  }
  for (size_t k = 0; k < out.values.size(); ++k) {
    const int position = program.buffers_size() + static_cast<int>(k);
    out.program.mutable_buffers(position)->set_id(out.buffers[position]);
  }
  *out.program.mutable_rules() = program.rules();
  written.program = std::move(out.program);
  return written;
}

}  // namespace terrace::check
