// How long a row of plans may go on: the next is begun only where as long a one as the longest so
// far still has time.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace terrace {

class PlanTimer {
 public:
  explicit PlanTimer(double seconds) : seconds_(seconds) {}

  // Asked before each plan.
  bool GoesOn() {
    const double now = Seconds();
    longest_ = std::max(longest_, now - last_);
    last_ = now;
    return now + longest_ <= seconds_;
  }
  // Asked within a plan.
  bool InTime() const { return Seconds() <= seconds_; }
  // Since it was made.
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  const double seconds_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double last_ = 0, longest_ = 0;
};

}  // namespace terrace
