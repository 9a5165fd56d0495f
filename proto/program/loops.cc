// SPDX-License-Identifier: Apache-2.0
#include "proto/program/loops.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "proto/program/operands.h"

namespace terrace {
namespace {

// Of all slots of a sequence: after so many iterations each is where it was.
int64_t Turn(const v1::Sequence& sequence) {
  int64_t turn = 1;
  for (const v1::Instruction& instruction : sequence.instructions()) {
    ForEachOperand(instruction, [&](const v1::Operand& operand) {
      if (operand.slots() > 0) turn = std::lcm(turn, int64_t{operand.slots()});
    });
  }
  return turn;
}

int64_t LongestBackWait(const v1::Sequence& sequence) {
  int64_t longest = 0;
  for (const v1::Instruction& instruction : sequence.instructions()) {
    for (const v1::BackWait& wait : instruction.back_waits())
      longest = std::max(longest, int64_t{wait.iterations()});
  }
  return longest;
}

}  // namespace

bool HasLoops(const v1::Program& program) {
  return std::any_of(program.sequences().begin(), program.sequences().end(),
                     [](const v1::Sequence& sequence) { return sequence.loops_size() > 0; });
}

bool LoopsFit(const v1::Sequence& sequence) {
  int64_t end = 0;
  for (const v1::Loop& loop : sequence.loops()) {
    if (loop.first() < end || loop.count() == 0 || loop.trips() == 0) return false;
    end = int64_t{loop.first()} + loop.count();
  }
  return end <= sequence.instructions_size();
}

int64_t PlayedInstructions(const v1::Sequence& sequence) {
  int64_t played = sequence.instructions_size();
  for (const v1::Loop& loop : sequence.loops())
    played += (int64_t{loop.trips()} - 1) * loop.count();
  return played;
}

LoopIndex::LoopIndex(const v1::Sequence& sequence)
    : sequence_(sequence),
      loop_of_(sequence.instructions_size(), kNoLoop),
      in_body_(sequence.loops_size()) {
  for (int k = 0; k < sequence.loops_size(); ++k) {
    const v1::Loop& loop = sequence.loops(k);
    for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
      loop_of_[i] = k;
      const v1::Instruction& instruction = sequence.instructions(static_cast<int>(i));
      ++in_body_[k][instruction.stream()];
      ForEachOperand(instruction, [&](const v1::Operand& operand) {
        if (operand.slots() > 0) loop_of_slots_.emplace(operand.buffer(), k);
        if (operand.offset_step() != 0) arrays_.emplace(operand.buffer(), operand.offset_step());
      });
    }
  }
}

bool LoopIndex::IsBehindALoop(int instruction) const {
  return loop_of_[instruction] == kNoLoop && sequence_.loops_size() > 0 &&
         sequence_.loops(0).first() < static_cast<uint32_t>(instruction);
}

int64_t LoopIndex::TripsOf(int instruction) const {
  const int loop = loop_of_[instruction];
  return loop == kNoLoop ? 1 : sequence_.loops(loop).trips();
}

int64_t LoopIndex::ValueOf(const v1::Operand& operand, int instruction, int64_t iteration) const {
  if (loop_of_[instruction] != kNoLoop) return operand.slot() + iteration;
  const auto loop = loop_of_slots_.find(operand.buffer());
  if (loop == loop_of_slots_.end()) return operand.slot();
  const v1::Loop& of_slots = sequence_.loops(loop->second);
  const bool behind = of_slots.first() < static_cast<uint32_t>(instruction);
  return operand.slot() + (behind ? int64_t{of_slots.trips()} : 0);
}

uint32_t LoopIndex::BufferOf(const v1::Operand& operand, int instruction, int64_t iteration) const {
  if (operand.slots() == 0) return operand.buffer();
  const int64_t slots = operand.slots();
  const int64_t value = ValueOf(operand, instruction, iteration) % slots;
  return operand.buffer() + static_cast<uint32_t>(value < 0 ? value + slots : value);
}

int64_t LoopIndex::OffsetOf(const v1::Operand& operand, int instruction, int64_t iteration) const {
  if (loop_of_[instruction] == kNoLoop) return operand.offset();
  return operand.offset() + iteration * operand.offset_step();
}

int LoopIndex::MicroBatchOf(int instruction, int64_t iteration) const {
  const int micro_batch = sequence_.instructions(instruction).micro_batch();
  if (loop_of_[instruction] == kNoLoop || micro_batch < 0) return micro_batch;
  return static_cast<int>(micro_batch +
                          iteration * sequence_.loops(loop_of_[instruction]).micro_batches());
}

int64_t LoopIndex::InBody(int loop, uint32_t stream) const {
  const auto found = in_body_[loop].find(stream);
  return found == in_body_[loop].end() ? 0 : found->second;
}

int64_t LoopIndex::ArrayStep(uint32_t buffer) const {
  const auto found = arrays_.find(buffer);
  return found == arrays_.end() ? 0 : found->second;
}

bool LoopIndex::IsAllRows(const v1::Operand& operand, int instruction) const {
  return sequence_.instructions(instruction).micro_batch() < 0 && IsBehindALoop(instruction) &&
         operand.access() != v1::ACCESS_UNSPECIFIED && ArrayStep(operand.buffer()) != 0;
}

int64_t LoopIndex::RowsOf(int64_t iterations) const {
  return sequence_.loops_size() == 0 ? 0 : iterations * sequence_.loops(0).micro_batches();
}

int64_t TurnOf(const v1::Program& program) {
  int64_t turn = 1;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.loops_size() > 0) turn = std::lcm(turn, Turn(sequence));
  }
  return turn;
}

int64_t IterationsThatShow(const v1::Program& program) {
  int64_t back = 0;
  for (const v1::Sequence& sequence : program.sequences())
    back = std::max(back, LongestBackWait(sequence));
  // Two turns of all slots: the first may still meet what the prologue left.
  return 2 * TurnOf(program) + back + 1;
}

int64_t IterationsToLeaveOut(const v1::Program& program) {
  return IterationsToLeaveOut(program, IterationsThatShow(program));
}

int64_t IterationsToLeaveOut(const v1::Program& program, int64_t kept) {
  const int64_t turn = TurnOf(program);
  int64_t trips = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    for (const v1::Loop& loop : sequence.loops())
      trips = trips == 0 ? loop.trips() : std::min(trips, int64_t{loop.trips()});
  }
  return std::max<int64_t>(0, trips - kept) / turn * turn;
}

namespace {

// One sequence, written into a program that has the original's buffers.
class Writer {
 public:
  Writer(const v1::Program& program, const v1::Sequence& from, int64_t leave_out, WrittenOut* out)
      : program_(program),
        from_(from),
        leave_out_(leave_out),
        index_(from),
        out_(*out),
        to_(*out->program.add_sequences()) {
    to_.set_name(from.name());
    to_.set_sequence_length(from.sequence_length());
  }

  void Run() {
    PlayOrder order = OrderOf(from_, index_, program_.streams_size(), leave_out_);
    to_.mutable_instructions()->Reserve(static_cast<int>(order.played.size()));
    for (size_t place = 0; place < order.played.size(); ++place)
      Add(order.played[place], order.WaitsOf(static_cast<int>(place)));
    out_.played.push_back(std::move(order.played));
    ShortenArrays();
  }

 private:
  void Add(PlayedInstruction played, std::span<const uint32_t> waits) {
    const auto [id, iteration] = played;
    v1::Instruction* instruction = to_.add_instructions();
    *instruction = from_.instructions(id);
    instruction->set_id(to_.instructions_size() - 1);
    instruction->set_micro_batch(MicroBatch(id, iteration));
    ForEachMutableOperand(instruction, [&](v1::Operand* operand) { Resolve(played, operand); });
    instruction->clear_back_waits();
    instruction->mutable_waits()->Assign(waits.begin(), waits.end());
  }

  // Behind a loop micro-batches are counted from the end of the step.
  int MicroBatch(int id, int64_t iteration) const {
    const int micro_batch = index_.MicroBatchOf(id, iteration);
    if (micro_batch < 0 || !index_.IsBehindALoop(id)) return micro_batch;
    return static_cast<int>(micro_batch - leave_out_ * from_.loops(0).micro_batches());
  }

  void Resolve(PlayedInstruction played, v1::Operand* operand) {
    if (operand->access() == v1::ACCESS_UNSPECIFIED) return;
    const auto [id, iteration] = played;
    operand->set_offset(index_.OffsetOf(*operand, id, iteration));
    if (index_.IsAllRows(*operand, id)) {
      operand->set_shape(0, operand->shape(0) - index_.RowsOf(leave_out_));
    } else if (index_.IsBehindALoop(id)) {
      operand->set_offset(operand->offset() - leave_out_ * index_.ArrayStep(operand->buffer()));
    }
    if (operand->slots() > 0) {
      int64_t value = index_.ValueOf(*operand, id, iteration);
      // Behind their loop values are numbered by the iterations that are left.
      if (index_.LoopOf(id) == kNoLoop && value != operand->slot()) value -= leave_out_;
      operand->set_buffer(
          BufferOfValue(operand->buffer(), value, index_.BufferOf(*operand, id, iteration)));
    }
    operand->clear_slots();
    operand->clear_slot();
    operand->clear_offset_step();
  }

  uint32_t BufferOfValue(uint32_t first, int64_t value, uint32_t place) {
    const auto [entry, is_new] = values_.try_emplace({first, value}, 0);
    if (is_new) {
      entry->second = static_cast<uint32_t>(out_.program.buffers_size());
      v1::Buffer* buffer = out_.program.add_buffers();
      *buffer = program_.buffers(static_cast<int>(place));
      buffer->set_id(entry->second);
      buffer->set_name(absl::StrCat(buffer->name(), "@", value));
      out_.buffers.push_back(place);
      out_.values.push_back({first, value});
    }
    return entry->second;
  }

  void ShortenArrays() {
    for (const auto& [id, step] : index_.arrays()) {
      v1::Buffer* buffer = out_.program.mutable_buffers(static_cast<int>(id));
      const int64_t row_bytes = buffer->bytes() / std::max<int64_t>(1, buffer->shape(0));
      buffer->set_shape(0, buffer->shape(0) - index_.RowsOf(leave_out_));
      buffer->set_bytes(buffer->bytes() - index_.RowsOf(leave_out_) * row_bytes);
    }
  }

  const v1::Program& program_;
  const v1::Sequence& from_;
  const int64_t leave_out_;
  const LoopIndex index_;
  WrittenOut& out_;
  v1::Sequence& to_;
  absl::flat_hash_map<std::pair<uint32_t, int64_t>, uint32_t> values_;  // by first buffer, number
};

}  // namespace

WrittenOut WriteOut(const v1::Program& program, int64_t leave_out) {
  WrittenOut out;
  out.left_out = leave_out;
  out.program = program;
  out.program.clear_sequences();
  for (int id = 0; id < program.buffers_size(); ++id) out.buffers.push_back(id);
  uint32_t micro_batches = 0;  // of an iteration
  for (const v1::Sequence& sequence : program.sequences()) {
    Writer(program, sequence, leave_out, &out).Run();
    if (sequence.loops_size() > 0) micro_batches = sequence.loops(0).micro_batches();
  }
  v1::StepRules* rules = out.program.mutable_rules();
  const double before = rules->micro_batches();
  rules->set_micro_batches(rules->micro_batches() -
                           static_cast<uint32_t>(leave_out) * micro_batches);
  if (before > 0) {
    const double share = rules->micro_batches() / before;
    rules->set_tokens_per_step(std::llround(rules->tokens_per_step() * share));
    rules->set_flops_per_step(rules->flops_per_step() * share);
  }
  return out;
}

}  // namespace terrace
