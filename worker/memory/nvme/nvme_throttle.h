// Slows requests to a rate for each direction, so that tests reach the break-even between compute
// and a link on any machine. The direction's requests take their turns one after the other,
// whichever queue they come from.
// Thread rule: thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/memory/nvme/nvme_io.h"

namespace terrace {

// Thread-safe.
class NvmeThrottle {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // 0: does not slow anything.
  explicit NvmeThrottle(int64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Sleeps until it is these bytes' turn; returns when the link would be done with them.
  Time Wait(NvmeDirection direction, int64_t bytes) {
    if (bytes_per_second_ == 0) return Time::min();
    Time begin;
    Time end;
    {
      const absl::MutexLock lock(&mutex_);
      Time& free = free_[direction == NvmeDirection::kWrite ? 1 : 0];
      begin = std::max(free, std::chrono::steady_clock::now());
      const std::chrono::duration<double> busy(static_cast<double>(bytes) /
                                               static_cast<double>(bytes_per_second_));
      end = begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(busy);
      free = end;
    }
    std::this_thread::sleep_until(begin);
    return end;
  }

 private:
  const int64_t bytes_per_second_;
  absl::Mutex mutex_;
  std::array<Time, 2> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
