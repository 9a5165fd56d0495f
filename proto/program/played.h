// The order in which a stream executes a sequence: its instructions as the list has them, those of
// a loop's body once an iteration. A played position is how many the stream has executed before,
// which is what ranks publish while they run.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// A loop as one stream sees it. Indices count the stream's instructions in the list.
struct PlayedLoop {
  int loop = 0;       // index in Sequence.loops
  int64_t first = 0;  // its first instruction in the body
  int64_t count = 0;  // how many it has there, at least 1
  int64_t trips = 1;
  int64_t begin = 0;  // played position of the first one in iteration 0

  int64_t end() const { return begin + trips * count; }  // of played positions
};

struct PlayedPlace {
  int64_t index = 0;
  int64_t iteration = 0;
  const PlayedLoop* loop = nullptr;  // null: outside of loops
};

// By stream, in order; a loop in which the stream has nothing is not among its loops. REQUIRES: as
// of LoopIndex; streams of instructions are below `streams`.
std::vector<std::vector<PlayedLoop>> LoopsOfStreams(const v1::Sequence& sequence, int streams);

// Of an instruction of the stream in iteration 0. Of the index behind its last one: how many it
// executes in all.
int64_t PlayedPosition(std::span<const PlayedLoop> loops, int64_t index);
// The other way around.
PlayedPlace PlaceAt(std::span<const PlayedLoop> loops, int64_t position);
// The same where the last loop that begins at or before the position is known; null: there is none.
PlayedPlace PlaceAfter(const PlayedLoop* last, int64_t position);

}  // namespace terrace
