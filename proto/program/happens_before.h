// What may run at the same time: instruction i happens before j when streams and waits, followed
// transitively, say so (Lamport 1978); nothing else is known about time.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// One vector clock an instruction: how many instructions of each stream are known to have finished
// when it ends.
class HappensBefore {
 public:
  // REQUIRES: waits point backwards, streams exist (CheckSchedule).
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

}  // namespace terrace
