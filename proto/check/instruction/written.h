// A program as most of the checker looks at it: without loops. Of each loop a few iterations are
// written out, the first ones; what stands behind it comes next. That the others do the same is
// proved at the loop's end (fixed_point.h).
//
// Instructions and buffers keep the ids that they have in the original, so that refusals name
// those; the checker itself goes by positions. Micro-batches and rules are those of the original,
// too: the first iterations' and, behind a loop, those of the end of the step.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace::check {

// A loop of a sequence.
struct Repeat {
  int loop = 0;                     // index in the original's Sequence.loops
  int begin = 0;                    // position of the first instruction that was written
  int count = 0;                    // instructions of the body
  int64_t shown = 0, left_out = 0;  // iterations
  int64_t micro_batches = 0;        // by which each moves on

  // What iterations leave to others. The value with a number lies in this buffer; those from number
  // i + `least` on may be touched in iteration i or later.
  struct Slots {
    uint32_t first = 0;
    int64_t least = 0;
    std::map<int64_t, uint32_t> values;
  };
  std::vector<Slots> slots;
  std::vector<uint32_t> plain;   // buffers that are the same in all iterations
  std::vector<uint32_t> arrays;  // buffers with a row a micro-batch

  int end() const { return begin + count * static_cast<int>(shown); }
  // The iteration at this position; -1: it stands before, `shown`: behind.
  int64_t IterationAt(int position) const {
    if (position < begin) return -1;
    return position >= end() ? shown : (position - begin) / count;
  }
};

struct WrittenSequence {
  std::vector<Repeat> repeats;
  int64_t played = 0;  // instructions that a rank executes, each as often as it does
};

struct Written {
  v1::Program program;
  std::vector<WrittenSequence> sequences;
};

// REQUIRES: CheckLoops passed, and `left_out` is of IterationsLeftOut.
Written WriteForCheck(const v1::Program& program, int64_t left_out);

}  // namespace terrace::check
