// How far streams have come in a sequence with loops, told by a list that few iterations are left
// of (WriteOut in loops.h): so many iterations are taken off as change nothing.
//
// All streams lose the same iterations of a loop, whole turns of its slots, as many as leave the
// slowest stream a turn behind the loop's beginning: there it is as in any later turn. Streams that
// have left the loop lose all that the list has not got.
//
// Pure. Thread-safe: constant once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// How many iterations a list must have so that positions can be told by it. Streams may be several
// iterations apart, each ahead of the next by as many as it waits back. REQUIRES: LoopsFit.
int64_t IterationsToTellPositions(const v1::Program& program);

class LoopPositions {
 public:
  // Of one sequence of the program. REQUIRES: LoopsFit; streams exist.
  LoopPositions(const v1::Program& program, const v1::Sequence& sequence, int64_t left_out);

  struct Place {
    std::vector<int32_t> finished;  // of the list, by stream
    std::vector<int64_t> skipped;   // iterations that were taken off, by loop
  };
  // `finished`: executed instructions by stream; more than there are: all. REQUIRES: one a stream.
  Place Of(std::span<const int32_t> finished) const;

 private:
  // What a stream has of a loop.
  struct Part {
    int64_t begin = 0;    // instructions that it executes before
    int64_t in_body = 0;  // of an iteration
  };
  struct Loop {
    int64_t trips = 1;
    std::vector<Part> parts;  // by stream
    // In which iteration the stream is: `trips` behind the loop, -1 before it or never in it.
    int64_t IterationOf(size_t stream, int32_t finished) const;
  };

  const int64_t turn_, left_out_;
  std::vector<Loop> loops_;
};

}  // namespace terrace
