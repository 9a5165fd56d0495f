// SPDX-License-Identifier: Apache-2.0
#include "proto/check/loop_values.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "base/status_macros.h"
#include "google/protobuf/util/message_differencer.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/loops.h"
#include "proto/program/loops.h"

namespace terrace::check {
namespace {

// Buffers used in turn, and who touches them.
struct Slots {
  uint32_t count = 0;
  int first_touch = 0;  // instruction
  int loop = kNoLoop;
  // The least and greatest `slot`: of the body, and of all touches.
  int64_t body_least = INT64_MAX, body_most = INT64_MIN;
  int64_t least = INT64_MAX, most = INT64_MIN;
};

// An array with a row a micro-batch.
struct Array {
  int first_touch = 0;
  int64_t step = 0;
};

class ValueChecker {
 public:
  ValueChecker(const v1::Program& program, const v1::Sequence& sequence)
      : program_(program), sequence_(sequence), index_(sequence) {}

  absl::Status Run() {
    for (int i = 0; i < sequence_.instructions_size(); ++i) {
      RETURN_IF_ERROR(ForEach(i, [&](const v1::Operand& operand) { return Note(i, operand); }));
    }
    for (const auto& [first, slots] : slots_) RETURN_IF_ERROR(CheckSlots(first, slots));
    for (int i = 0; i < sequence_.instructions_size(); ++i) {
      RETURN_IF_ERROR(
          ForEach(i, [&](const v1::Operand& operand) { return CheckTouch(i, operand); }));
    }
    return absl::OkStatus();
  }

 private:
  template <typename Visit>
  absl::Status ForEach(int i, Visit visit) const {
    const v1::Instruction& instruction = sequence_.instructions(i);
    for (const v1::Operand& operand : instruction.operands()) RETURN_IF_ERROR(visit(operand));
    if (!instruction.compute().has_workspace()) return absl::OkStatus();
    return visit(instruction.compute().workspace());
  }

  std::string WhereIs(int i) const { return Where(sequence_, sequence_.instructions(i)); }
  std::string SlotsText(uint32_t first, uint32_t count) const {
    return absl::StrCat(BufferText(program_, first), " and ", count - 1, " more, used in turn");
  }

  absl::Status Note(int i, const v1::Operand& operand) {
    const bool in_loop = index_.LoopOf(i) != kNoLoop;
    if (operand.buffer() >= static_cast<uint32_t>(program_.buffers_size()) ||
        operand.access() == v1::ACCESS_UNSPECIFIED) {
      if (operand.slots() == 0 && operand.slot() == 0 && operand.offset_step() == 0)
        return absl::OkStatus();
      return Refuse(WhereIs(i), ": has slots or an offset_step in an operand without a buffer");
    }
    if (operand.offset_step() != 0) {
      if (!in_loop || operand.slots() > 0) {
        return Refuse(WhereIs(i), ": offset_step ", operand.offset_step(), " in ",
                      BufferText(program_, operand.buffer()),
                      in_loop ? ", whose values lie in slots; an array has none"
                              : ", but it stands in no loop");
      }
      const Array array = {i, operand.offset_step()};
      const Array& known = arrays_.emplace(operand.buffer(), array).first->second;
      if (known.step != operand.offset_step()) {
        return Refuse(WhereIs(i), ": moves on by ", operand.offset_step(), " bytes in ",
                      BufferText(program_, operand.buffer()), " with each iteration, ",
                      WhereIs(known.first_touch), " by ", known.step);
      }
    }
    if (operand.slots() > 0) return NoteSlots(i, operand);
    if (operand.slot() == 0) return absl::OkStatus();
    return Refuse(WhereIs(i), ": slot ", operand.slot(), " of ",
                  BufferText(program_, operand.buffer()), ", which has no slots");
  }

  absl::Status NoteSlots(int i, const v1::Operand& operand) {
    const uint32_t first = operand.buffer(), count = operand.slots();
    if (count > kTurnMax || count > static_cast<uint32_t>(program_.buffers_size()) - first) {
      return Refuse(WhereIs(i), ": ", count, " slots from ", BufferText(program_, first),
                    " on, must be at most ", kTurnMax, " and exist");
    }
    if (operand.slot() < -kSlotMax || operand.slot() > kSlotMax) {
      return Refuse(WhereIs(i), ": slot ", operand.slot(), " of ", SlotsText(first, count),
                    ", must be from ", -kSlotMax, " to ", kSlotMax);
    }
    Slots& slots = slots_.try_emplace(first, Slots{.count = count, .first_touch = i}).first->second;
    if (slots.count != count) {
      return Refuse(WhereIs(i), ": takes ", SlotsText(first, count), ", ",
                    WhereIs(slots.first_touch), " takes ", SlotsText(first, slots.count));
    }
    slots.least = std::min<int64_t>(slots.least, operand.slot());
    slots.most = std::max<int64_t>(slots.most, operand.slot());
    const int loop = index_.LoopOf(i);
    if (loop == kNoLoop) return absl::OkStatus();
    if (slots.loop != kNoLoop && slots.loop != loop) {
      return Refuse(WhereIs(i), ": touches ", SlotsText(first, count),
                    ", in another loop than instructions before it; their iterations are not the "
                    "same");
    }
    slots.loop = loop;
    slots.body_least = std::min<int64_t>(slots.body_least, operand.slot());
    slots.body_most = std::max<int64_t>(slots.body_most, operand.slot());
    return absl::OkStatus();
  }

  // Alike but for name and place, and no value is touched by iterations so far apart that its bytes
  // hold the next one by then.
  absl::Status CheckSlots(uint32_t first, const Slots& slots) {
    const auto where = [&] { return WhereIs(slots.first_touch); };
    const auto text = [&] { return SlotsText(first, slots.count); };
    if (slots.loop == kNoLoop)
      return Refuse(where, ": takes ", text, ", but no instruction of a loop does");
    v1::Buffer one = program_.buffers(static_cast<int>(first));
    for (uint32_t id = first; id < first + slots.count; ++id) {
      const v1::Buffer& buffer = program_.buffers(static_cast<int>(id));
      one.set_id(id);
      one.set_name(buffer.name());
      one.set_offset(buffer.offset());
      if (buffer.lifetime() != v1::STEP ||
          !google::protobuf::util::MessageDifferencer::Equals(one, buffer)) {
        return Refuse(where, ": takes ", text, ", of which ", BufferText(program_, id),
                      " is not of the step or not as large, of the type, the class and the arena ",
                      "of the first");
      }
      if (!owner_.emplace(id, first).second) {
        return Refuse(where, ": takes ", text, ", of which ", BufferText(program_, id),
                      " is one of ", SlotsText(owner_[id], slots_.at(owner_[id]).count), ", too");
      }
    }
    const int64_t span = slots.body_most - slots.body_least;
    // What comes next into the same bytes may begin in the iteration that ends a value.
    if (span > slots.count) {
      return Refuse(where, ": takes ", text, ", the loop touches a value in iterations ", span,
                    " apart, when another lies in its bytes");
    }
    if (slots.most - slots.least < 2 * int64_t{slots.count}) return absl::OkStatus();
    return Refuse(where, ": takes ", text, ", instructions outside the loop touch values ",
                  slots.most - slots.least, " apart, must be less than two rounds");
  }

  absl::Status CheckTouch(int i, const v1::Operand& operand) const {
    if (operand.access() == v1::ACCESS_UNSPECIFIED) return absl::OkStatus();
    const auto owner = owner_.find(operand.buffer());
    if (owner != owner_.end() && (operand.slots() == 0 || owner->second != operand.buffer())) {
      return Refuse(WhereIs(i), ": touches ", BufferText(program_, operand.buffer()),
                    " by itself, which is one of ",
                    SlotsText(owner->second, slots_.at(owner->second).count));
    }
    const auto array = arrays_.find(operand.buffer());
    return array == arrays_.end() ? absl::OkStatus() : CheckRow(i, operand, array->second);
  }

  // Whoever has a micro-batch touches its row; others stand behind the loops and take all rows.
  absl::Status CheckRow(int i, const v1::Operand& operand, const Array& array) const {
    const v1::Instruction& instruction = sequence_.instructions(i);
    const v1::Buffer& buffer = program_.buffers(static_cast<int>(operand.buffer()));
    const int64_t rows = program_.rules().micro_batches();
    int64_t row_bytes = kernels::SizeOf(static_cast<kernels::DType>(buffer.dtype()));
    for (int d = 1; d < buffer.shape_size(); ++d) row_bytes *= buffer.shape(d);
    const auto refuse = [&](const auto&... rule) {
      return Refuse(WhereIs(i), ": ", BufferText(program_, operand.buffer()),
                    " is an array with a row a micro-batch, ", rule...);
    };
    const int loop = index_.LoopOf(i);
    if (buffer.shape_size() < 1 || buffer.shape(0) != rows || buffer.lifetime() != v1::STEP)
      return refuse("must be of the step and have the ", rows, " rows of rules.micro_batches");
    const int64_t each = int64_t{sequence_.loops(0).micro_batches()};
    if (array.step != row_bytes * each)
      return refuse("an iteration must move on by ", row_bytes * each, " bytes, got ", array.step);
    if (loop != kNoLoop && operand.offset_step() == 0)
      return refuse("in a loop it is touched with an offset_step");
    if (operand.row_stride() != 0 || operand.shape_size() < 1 || operand.dtype() != buffer.dtype())
      return refuse("its rows are touched densely, in its type");
    if (instruction.micro_batch() >= rows)
      return refuse("micro-batch ", instruction.micro_batch(), " has no row");
    if (instruction.micro_batch() < 0) {
      if (loop == kNoLoop && index_.IsBehindALoop(i) && operand.offset() == 0 &&
          operand.shape(0) == rows)
        return absl::OkStatus();
      return refuse("who has no micro-batch must take all rows, behind the loops");
    }
    int64_t bytes = kernels::SizeOf(static_cast<kernels::DType>(operand.dtype()));
    for (int64_t size : operand.shape()) {
      if (size < 1 || size > row_bytes / bytes)
        return refuse("its operand must be of 1 element to those of a row");
      bytes *= size;
    }
    const int64_t row = instruction.micro_batch() * row_bytes;
    if (operand.offset() >= row && operand.offset() <= row + row_bytes - bytes)
      return CheckNear(i, array);
    return refuse("micro-batch ", instruction.micro_batch(), " must be in bytes [", row, ", +",
                  row_bytes, "), got [", operand.offset(), ", +", bytes, ")");
  }

  // A row is touched in one iteration of a loop or in two that follow one another.
  absl::Status CheckNear(int i, const Array& array) const {
    const int loop = index_.LoopOf(i);
    if (loop == kNoLoop || index_.LoopOf(array.first_touch) != loop) return absl::OkStatus();
    const int64_t apart = int64_t{sequence_.instructions(i).micro_batch()} -
                          sequence_.instructions(array.first_touch).micro_batch();
    if (std::abs(apart) <= sequence_.loops(loop).micro_batches()) return absl::OkStatus();
    return Refuse(WhereIs(i), ": touches the row ", apart, " micro-batches from that of ",
                  WhereIs(array.first_touch), ", the loop moves on by ",
                  sequence_.loops(loop).micro_batches());
  }

  const v1::Program& program_;
  const v1::Sequence& sequence_;
  const LoopIndex index_;
  std::map<uint32_t, Slots> slots_;     // by first buffer
  std::map<uint32_t, uint32_t> owner_;  // by buffer: the first of its slots
  std::map<uint32_t, Array> arrays_;    // by buffer
};

}  // namespace

absl::Status CheckLoopValues(const v1::Program& program, const v1::Sequence& sequence) {
  return ValueChecker(program, sequence).Run();
}

int64_t FarthestSlot(const v1::Sequence& sequence) {
  int64_t farthest = 0;
  const auto note = [&](const v1::Operand& operand) {
    if (operand.slots() > 0) farthest = std::max(farthest, std::abs(int64_t{operand.slot()}));
  };
  for (const v1::Instruction& instruction : sequence.instructions()) {
    for (const v1::Operand& operand : instruction.operands()) note(operand);
    if (instruction.compute().has_workspace()) note(instruction.compute().workspace());
  }
  return farthest;
}

int64_t SlottedValues(const v1::Sequence& sequence, const v1::Loop& loop) {
  std::set<uint32_t> first;
  const auto note = [&](const v1::Operand& operand) {
    if (operand.slots() > 0) first.insert(operand.buffer());
  };
  for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(static_cast<int>(i));
    for (const v1::Operand& operand : instruction.operands()) note(operand);
    if (instruction.compute().has_workspace()) note(instruction.compute().workspace());
  }
  return static_cast<int64_t>(first.size());
}

}  // namespace terrace::check
