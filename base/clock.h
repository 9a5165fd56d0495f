// Time as an argument: whoever waits or stamps takes a Clock, so that tests and simulations own
// time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace terrace {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Milliseconds since the Unix epoch: for stamps that people and other machines read.
  virtual int64_t UnixMillis() const = 0;
  // Monotonic nanoseconds since an arbitrary start: for durations and deadlines.
  virtual int64_t MonotonicNanos() const = 0;
};

class SystemClock final : public Clock {
 public:
  int64_t UnixMillis() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  int64_t MonotonicNanos() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace terrace
