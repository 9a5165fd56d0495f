// The checker's third part: what may run at the same time. Instruction i happens before j when
// streams and waits, followed transitively, say so; nothing else is known about time.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/check/instructions.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// One vector clock an instruction: how many instructions of each stream are known to have finished
// when it ends.
class HappensBefore {
 public:
  // REQUIRES: CheckInstructions passed.
  HappensBefore(const v1::Program& program, const v1::Sequence& sequence);

  // REQUIRES: i < j.
  bool Ordered(int i, int j) const { return Known(j, stream_[i]) > index_[i]; }

  int streams() const { return streams_; }
  int stream(int i) const { return stream_[i]; }
  int index(int i) const { return index_[i]; }  // in its stream
  // How many instructions of `stream` have finished when j ends.
  int Known(int j, int stream) const { return clocks_[static_cast<size_t>(j) * streams_ + stream]; }

 private:
  int streams_;
  std::vector<int> stream_;
  std::vector<int> index_;
  std::vector<int> clocks_;  // instruction-major
};

// Refuses two accesses to the same bytes of one buffer, one of them a write, that are not ordered.
absl::Status CheckConflicts(const v1::Program& program, const CheckedSequence& sequence,
                            const HappensBefore& order);

// Refuses two buffers that share bytes of an arena unless all accesses to one are ordered before
// all to the other; persistent buffers share with nobody. All sequences.
absl::Status CheckPersistentSpace(const v1::Program& program);
absl::Status CheckSharedSpace(const v1::Program& program, const CheckedSequence& sequence,
                              const HappensBefore& order);

// Refuses a read of bytes that nothing has written: earlier in the sequence or, of a persistent
// buffer, its state, its rope table or "restore" (lasting.h asks what "train" leaves there).
// REQUIRES: CheckConflicts passed (then an earlier write is an ordered one).
absl::Status CheckReads(const v1::Program& program, const std::vector<CheckedSequence>& sequences);

}  // namespace terrace::check
