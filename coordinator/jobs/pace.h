// Keeps work whose cost grows with the cluster to a tenth of a thread: what took long is done again
// only after nine times that long. Work that takes under a millisecond is never held back.
//
// Time is an argument. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

class Pace {
 public:
  bool IsDue(int64_t now_ns) const { return now_ns >= next_ns_; }
  void Took(int64_t begun_ns, int64_t ended_ns) {
    const int64_t took_ns = ended_ns - begun_ns;
    next_ns_ = took_ns < kShortNs ? ended_ns : ended_ns + kRestsPerWork * took_ns;
  }

 private:
  static constexpr int64_t kShortNs = 1'000'000;
  static constexpr int64_t kRestsPerWork = 9;
  int64_t next_ns_ = INT64_MIN;
};

}  // namespace terrace
