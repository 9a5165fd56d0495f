// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/pacer.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace terrace {

int64_t Pacer::NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Pacer::Cross(int64_t bytes, int64_t ready_ns) {
  const double seconds =
      limit_.bytes_per_second > 0 ? static_cast<double>(bytes) / limit_.bytes_per_second : 0;
  int64_t arrival_ns = 0;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t earliest_ns = ready_ns + static_cast<int64_t>(limit_.latency_seconds * 1e9);
    free_ns_ = std::max(earliest_ns, free_ns_) + static_cast<int64_t>(seconds * 1e9);
    arrival_ns = free_ns_;
  }
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(arrival_ns)));
}

}  // namespace terrace
