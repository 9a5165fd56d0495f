// A clock that stands still until a test moves it. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace terrace {

class FakeClock final : public Clock {
 public:
  int64_t UnixMillis() const override { return 1'700'000'000'000 + now_ns_ / 1'000'000; }
  int64_t MonotonicNanos() const override { return now_ns_; }
  void AdvanceMillis(int64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  int64_t now_ns_ = 1;
};

}  // namespace terrace
