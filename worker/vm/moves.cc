// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/moves.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace {

absl::StatusOr<OperandPlace> PlaceOf(const v1::Program& program, const LoopIndex& loops,
                                     int instruction, const v1::Operand& operand) {
  const uint32_t arena = program.buffers(static_cast<int>(operand.buffer())).arena();
  const int64_t end = int64_t{operand.buffer()} + operand.slots();
  for (int64_t slot = operand.buffer(); slot < end; ++slot) {
    if (slot < program.buffers_size() && program.buffers(static_cast<int>(slot)).arena() == arena)
      continue;
    return absl::InvalidArgumentError(absl::StrCat("an operand has slots from buffer ",
                                                   operand.buffer(), " to ", end - 1,
                                                   ", which must be buffers of one arena"));
  }
  const v1::Buffer& buffer =
      program.buffers(static_cast<int>(loops.BufferOf(operand, instruction, 0)));
  return OperandPlace{.arena = arena, .offset = buffer.offset() + operand.offset()};
}

std::optional<Move> MoveOf(const v1::Program& program, const LoopIndex& loops, int instruction,
                           const v1::Operand& operand, std::span<std::byte* const> arenas) {
  const bool in_loop = loops.LoopOf(instruction) != kNoLoop;
  if (!in_loop || (operand.slots() <= 1 && operand.offset_step() == 0)) return std::nullopt;
  const int64_t slots = std::max<int64_t>(1, operand.slots());
  const uint32_t first = operand.buffer();
  Move move{.arena = arenas[program.buffers(static_cast<int>(first)).arena()],
            .slot = loops.BufferOf(operand, instruction, 0) - first,
            .step = operand.offset_step()};
  for (int64_t slot = 0; slot < slots; ++slot) {
    const v1::Buffer& buffer = program.buffers(static_cast<int>(first + slot));
    move.places.push_back(buffer.offset() + operand.offset());
  }
  return move;
}

}  // namespace terrace
