// Walks the instructions of a stream in the order in which it executes them, and says which of them
// leave their times.
//
// Of a loop that is so long that its times would take too much memory the first and the last
// iterations are recorded. All streams of a sequence record the same ones. Times are kept in the
// order of execution.
//
// Allocates nothing. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/program/played.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// What the loops of a sequence record together, in instructions of all streams; two iterations of
// each loop in any case.
inline constexpr int64_t kRecordedInLoopsMax = 1 << 17;
inline constexpr int64_t kNotRecorded = -1;

struct RecordedLoop : PlayedLoop {
  int64_t head = 0;    // recorded iterations at its start
  int64_t tail = 0;    // and at its end; all of them where `head` + `tail` is `trips`
  int64_t slices = 0;  // of the stream's slices those that come before the loop's

  bool IsRecorded(int64_t iteration) const { return iteration < head || iteration >= trips - tail; }
  int64_t left_out() const { return trips - head - tail; }
};

// By stream. REQUIRES: as of LoopsOfStreams.
std::vector<std::vector<RecordedLoop>> RecordedLoops(const v1::Sequence& sequence, int streams);

// Of a stream of so many instructions: how many it executes, and how many slices that leaves.
int64_t CountPlayed(std::span<const RecordedLoop> loops, size_t instructions);
int64_t CountRecorded(std::span<const RecordedLoop> loops, size_t instructions);
// Which instruction is executed at that position.
PlayedPlace PlaceAt(std::span<const RecordedLoop> loops, int64_t position);
// Where its times are; kNotRecorded.
int64_t SliceAt(std::span<const RecordedLoop> loops, int64_t position);

class PlayedCursor {
 public:
  // Borrows the loops.
  PlayedCursor(std::span<const RecordedLoop> loops, size_t instructions)
      : loops_(loops), instructions_(static_cast<int32_t>(instructions)) {
    Go();
  }

  bool AtEnd() const { return index_ == instructions_; }
  size_t index() const { return static_cast<size_t>(index_); }
  int32_t position() const { return position_; }  // how many were executed before
  const RecordedLoop* loop() const { return in_loop_ ? &loops_[next_] : nullptr; }
  int32_t iteration() const { return iteration_; }  // 0 outside of loops
  bool recorded() const { return recorded_; }
  // REQUIRES: recorded().
  size_t slice() const { return static_cast<size_t>(slice_); }

  void Advance() {
    slice_ += recorded_ ? 1 : 0;
    ++position_;
    if (++index_ == bound_) Turn();
  }
  // To the next one that is recorded.
  void AdvanceRecorded() {
    Advance();
    if (!recorded_ && in_loop_) SkipLeftOut();
  }

 private:
  // From the end of a body, or of the list before a loop.
  void Turn();
  void Go();
  void SkipLeftOut();

  std::span<const RecordedLoop> loops_;
  int32_t instructions_;
  int32_t index_ = 0;
  int32_t bound_ = 0;  // where the body, or the list before the next loop, ends
  int32_t position_ = 0;
  int32_t iteration_ = 0;
  int64_t slice_ = 0;
  size_t next_ = 0;  // loop: the present or the next one
  bool in_loop_ = false;
  bool recorded_ = true;
};

}  // namespace terrace
