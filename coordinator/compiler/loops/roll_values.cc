// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/loops/roll_values.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/pack/liveness.h"
#include "proto/program/loops.h"
#include "proto/program/operands.h"

namespace terrace::compiler {
namespace {

// Slots may exceed the fewest that are needed by this share of all values' bytes.
constexpr double kSlotsOverLeast = 0.002;

// The fewest slots, at least so many, that are in their first places again after a turn.
int64_t SlotsOfTurn(int64_t turn, int64_t slots) {
  while (turn % slots != 0) ++slots;
  return slots;
}

std::vector<const v1::Operand*> OperandsOf(const v1::Instruction& instruction) {
  std::vector<const v1::Operand*> operands;
  ForEachOperand(instruction, [&](const v1::Operand& operand) { operands.push_back(&operand); });
  return operands;
}

class ValueFinder {
 public:
  ValueFinder(const v1::Program& program, const v1::Sequence& sequence,
              const Iterations& iterations, int64_t micro_batches)
      : program_(program),
        sequence_(sequence),
        iterations_(iterations),
        micro_batches_(micro_batches) {}

  absl::StatusOr<RolledValues> Run() {
    for (int k = 0; k < iterations_.length; ++k) {
      std::vector<std::vector<const v1::Operand*>> operands;  // by iteration
      for (int i = 0; i < iterations_.count; ++i)
        operands.push_back(OperandsOf(sequence_.instructions(iterations_.begin(i) + k)));
      for (size_t o = 0; o < operands[0].size(); ++o) {
        std::vector<const v1::Operand*> same;
        for (const auto& of_iteration : operands) same.push_back(of_iteration[o]);
        if (same[0]->access() == v1::ACCESS_UNSPECIFIED) continue;
        RETURN_IF_ERROR(Add(sequence_.instructions(iterations_.first + k), same));
      }
    }
    RETURN_IF_ERROR(CheckConstants());
    RETURN_IF_ERROR(CountSlots());
    return std::move(values_);
  }

 private:
  const v1::Buffer& BufferOf(const v1::Operand& operand) const {
    return program_.buffers(static_cast<int>(operand.buffer()));
  }

  // One operand, in all iterations.
  absl::Status Add(const v1::Instruction& instruction,
                   const std::vector<const v1::Operand*>& operands) {
    const int64_t step = operands[1]->offset() - operands[0]->offset();
    const bool moves = operands[1]->buffer() != operands[0]->buffer();
    for (size_t i = 1; i < operands.size(); ++i) {
      if (operands[i]->offset() - operands[i - 1]->offset() != step ||
          (operands[i]->buffer() != operands[i - 1]->buffer()) != moves) {
        return DoesNotRepeat(sequence_, &instruction, "its operands do not move alike");
      }
    }
    if (moves) {
      if (step == 0) return AddToChain(instruction, operands);
      return DoesNotRepeat(sequence_, &instruction, "an operand moves inside of what changes");
    }
    const v1::Buffer& buffer = BufferOf(*operands[0]);
    if (step == 0) {
      constants_.emplace(operands[0]->buffer(), &instruction);
      return absl::OkStatus();
    }
    if (buffer.lifetime() == v1::PERSISTENT || buffer.shape_size() == 0 ||
        buffer.shape(0) != micro_batches_ || step % (buffer.bytes() / micro_batches_) != 0) {
      return DoesNotRepeat(sequence_, &instruction, "an operand does not move by rows");
    }
    values_.arrays.emplace(operands[0]->buffer(), step);
    return absl::OkStatus();
  }

  absl::Status AddToChain(const v1::Instruction& instruction,
                          const std::vector<const v1::Operand*>& operands) {
    int chain = -1, number = 0;  // of the value of iteration 0
    for (size_t i = 0; i < operands.size() && chain < 0; ++i) {
      const auto known = values_.numbers.find(operands[i]->buffer());
      if (known == values_.numbers.end()) continue;
      chain = known->second.first;
      number = known->second.second - static_cast<int>(i);
    }
    if (chain < 0) {
      chain = static_cast<int>(values_.chains.size());
      values_.chains.emplace_back();
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      const uint32_t buffer = operands[i]->buffer();
      const std::pair<int, int> place = {chain, number + static_cast<int>(i)};
      const auto of_number = values_.chains[chain].buffers.emplace(place.second, buffer).first;
      const auto of_buffer = values_.numbers.emplace(buffer, place).first;
      if (of_number->second != buffer || of_buffer->second != place || !LikeTheFirst(chain, buffer))
        return DoesNotRepeat(sequence_, &instruction, "its values do not follow one another");
    }
    return absl::OkStatus();
  }

  bool LikeTheFirst(int chain, uint32_t id) const {
    const v1::Buffer& first =
        program_.buffers(static_cast<int>(values_.chains[chain].buffers.begin()->second));
    const v1::Buffer& buffer = program_.buffers(static_cast<int>(id));
    return buffer.lifetime() == v1::STEP && buffer.bytes() == first.bytes() &&
           buffer.arena() == first.arena() && buffer.class_() == first.class_() &&
           buffer.dtype() == first.dtype();
  }

  // A buffer that one instruction finds unchanged in all iterations must not change for another.
  absl::Status CheckConstants() const {
    for (const auto& [buffer, instruction] : constants_) {
      if (!values_.numbers.contains(buffer) && !values_.arrays.contains(buffer)) continue;
      return DoesNotRepeat(sequence_, instruction, "iterations share what one of them makes");
    }
    return absl::OkStatus();
  }

  // Finds the fewest buffers with which each value ends before the next one in its buffer begins.
  // At least two values more than buffers must have been seen, or the list says nothing about it.
  absl::Status CountSlots() {
    const std::vector<Life> lives = Liveness(program_, sequence_);
    for (RolledValues::Chain& chain : values_.chains) {
      const int least_seen = 2;
      const int most = static_cast<int>(chain.buffers.size()) - least_seen;
      for (chain.slots = 1; chain.slots <= most && !Suffices(chain, lives); ++chain.slots) {
      }
      if (chain.slots <= most) continue;
      return DoesNotRepeat(
          sequence_, nullptr,
          absl::StrCat("values like ", program_.buffers(chain.buffers.begin()->second).name(),
                       " of more iterations than were seen are in use at a time")
              .c_str());
    }
    return absl::OkStatus();
  }

  static bool Suffices(const RolledValues::Chain& chain, const std::vector<Life>& lives) {
    return std::all_of(chain.buffers.begin(), chain.buffers.end(), [&](const auto& value) {
      const auto next = chain.buffers.find(value.first + chain.slots);
      return next == chain.buffers.end() || lives[value.second].end <= lives[next->second].begin;
    });
  }

  const v1::Program& program_;
  const v1::Sequence& sequence_;
  const Iterations iterations_;
  const int64_t micro_batches_;
  std::map<uint32_t, const v1::Instruction*> constants_;  // by buffer: who touches it
  RolledValues values_;
};

}  // namespace

absl::Status DoesNotRepeat(const v1::Sequence& sequence, const v1::Instruction* instruction,
                           const char* why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "sequence '", sequence.name(), "' does not repeat itself",
      instruction == nullptr
          ? ""
          : absl::StrCat(": instruction ", instruction->id(), " (", instruction->text(), ")"),
      ": ", why));
}

absl::StatusOr<RolledValues> FindValues(const v1::Program& program, const v1::Sequence& sequence,
                                        const Iterations& iterations, int64_t micro_batches) {
  return ValueFinder(program, sequence, iterations, micro_batches).Run();
}

absl::Status AlignSlots(const v1::Program& program,
                        std::vector<std::optional<RolledSequence>>* rolled) {
  std::vector<RolledValues::Chain*> chains;
  std::map<int64_t, int64_t> bytes;  // by slots that are needed: of one slot of all such chains
  int64_t all_bytes = 0;
  for (std::optional<RolledSequence>& sequence : *rolled) {
    if (!sequence.has_value()) continue;
    for (RolledValues::Chain& chain : sequence->values.chains) {
      const auto buffer = static_cast<int>(chain.buffers.begin()->second);
      const int64_t of_slot = program.buffers(buffer).bytes();
      chains.push_back(&chain);
      bytes[chain.slots] += of_slot;
      all_bytes += of_slot * chain.slots;
    }
  }
  if (chains.empty()) return absl::OkStatus();
  const int64_t needed = bytes.rbegin()->first;
  if (needed > kTurnMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(needed, " values of one kind are in use at a time"));
  }
  std::map<int64_t, int64_t> more;  // by turn: bytes that its slots take beyond what is needed
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t turn = needed; turn <= kTurnMax; ++turn) {
    for (const auto& [slots, of_slot] : bytes)
      more[turn] += of_slot * (SlotsOfTurn(turn, slots) - slots);
    least = std::min(least, more[turn]);
  }
  const int64_t most =
      least + static_cast<int64_t>(kSlotsOverLeast * static_cast<double>(all_bytes));
  const auto turn = std::find_if(more.begin(), more.end(),
                                 [most](const auto& one) { return one.second <= most; });
  for (RolledValues::Chain* chain : chains)
    chain->slots = static_cast<int>(SlotsOfTurn(turn->first, chain->slots));
  return absl::OkStatus();
}

}  // namespace terrace::compiler
