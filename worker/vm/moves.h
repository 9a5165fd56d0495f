// Where an operand lies in its arena, and how it moves with the iterations of a loop: from slot to
// slot, by a step of bytes, or both.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/program/loops.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Something of a prepared instruction that each iteration sets anew.
struct Move {
  enum class Target {
    kOperand,      // its address
    kWorkspace,    // of a computation
    kPieceMemory,  // of a copy from or to NVMe: where the piece lies in memory,
    kPieceOffset,  // and in the file
  };
  Target target = Target::kOperand;
  int index = 0;                  // of the operand or the piece
  std::byte* arena = nullptr;     // null: it lies on NVMe, where places are all that there is
  std::vector<int64_t> places{};  // of the slots, in bytes from the start of the arena
  int64_t slot = 0;               // of iteration 0
  int64_t step = 0;               // bytes

  int64_t PlaceIn(int32_t iteration) const {
    const auto slots = static_cast<int64_t>(places.size());
    return places[static_cast<size_t>((slot + iteration) % slots)] + step * iteration;
  }
  std::byte* AddressIn(int32_t iteration) const { return arena + PlaceIn(iteration); }
};

struct OperandPlace {
  uint32_t arena = 0;  // index in Program.arenas
  int64_t offset = 0;  // bytes from its start
};

// In iteration 0. INVALID_ARGUMENT where slots are not buffers of one arena, which would then have
// no place. REQUIRES: the operand is present.
absl::StatusOr<OperandPlace> PlaceOf(const v1::Program& program, const LoopIndex& loops,
                                     int instruction, const v1::Operand& operand);
// None: it stays where it is. REQUIRES: PlaceOf says where that is.
std::optional<Move> MoveOf(const v1::Program& program, const LoopIndex& loops, int instruction,
                           const v1::Operand& operand, std::span<std::byte* const> arenas);

}  // namespace terrace
