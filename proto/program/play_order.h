// The order in which the instructions of a sequence are executed when each of its loops has so many
// iterations fewer, and what each of them waits for there. Whoever needs no more of a step than
// order and time reads this instead of a program that is written out (loops.h).
//
// Pure. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

class LoopIndex;

struct PlayedInstruction {
  int instruction = 0;    // of the sequence
  int64_t iteration = 0;  // of those that are left; 0 outside of loops
};

struct PlayOrder {
  std::vector<PlayedInstruction> played;
  std::vector<uint32_t> waits;    // places in `played`, those of the first place first
  std::vector<size_t> waits_end;  // by place: the end of its part of `waits`

  std::span<const uint32_t> WaitsOf(int place) const {
    const size_t begin = place == 0 ? 0 : waits_end[place - 1];
    return std::span(waits).subspan(begin, waits_end[place] - begin);
  }
};

// `streams`: how many the program has. A sequence without loops gives what it says, unchecked.
// REQUIRES: `leave_out` is below the trips of every loop.
PlayOrder OrderOf(const v1::Sequence& sequence, const LoopIndex& index, int streams,
                  int64_t leave_out);

}  // namespace terrace
