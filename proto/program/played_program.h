// What a program executes, as a list without loops that few iterations of each are left of: for
// whoever reads what happens in a step (memory, times, pictures) without caring for loops. A
// program without loops is its own list.
//
// Bytes are those of the whole step: an array with a row a micro-batch keeps all its rows. The
// iterations shown are the first ones; what stands behind a loop has the micro-batch that it has in
// the whole step. What the last iterations that are shown hold, all that are left out hold too.
//
// Borrows the program. Thread-safe: constant once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "proto/program/loops.h"
#include "proto/v1/program.pb.h"

namespace terrace {

class PlayedProgram {
 public:
  // With as few iterations as show all. REQUIRES: LoopsFit of every sequence.
  explicit PlayedProgram(const v1::Program* program)
      : PlayedProgram(program, IterationsToLeaveOut(*program)) {}
  // REQUIRES: besides, `leave_out` is one that WriteOut may be given.
  PlayedProgram(const v1::Program* program, int64_t leave_out);

  // The list. Its sequences are those of the original, in the same order.
  const v1::Program& program() const { return written_ == nullptr ? *program_ : written_->program; }
  const v1::Program& original() const { return *program_; }
  // Null where there are no loops.
  const std::shared_ptr<const WrittenOut>& written() const { return written_; }
  // Iterations of each loop.
  int64_t left_out() const { return written_ == nullptr ? 0 : written_->left_out; }

  // Where the sequence is among those of program(). REQUIRES: it is one of them.
  int IndexOf(const v1::Sequence& sequence) const;

  // That of the original in whose bytes one of the list's lies.
  const v1::Buffer& BufferOf(uint32_t buffer) const {
    return program_->buffers(
        static_cast<int>(written_ == nullptr ? buffer : written_->buffers[buffer]));
  }
  // What stands at a place of the list.
  WrittenOut::Played PlayedAt(int sequence, int place) const {
    return written_ == nullptr ? WrittenOut::Played{.instruction = place}
                               : written_->played[sequence][place];
  }

 private:
  const v1::Program* program_;
  std::shared_ptr<const WrittenOut> written_;  // shared_ptr: copies of a play share it
};

}  // namespace terrace
