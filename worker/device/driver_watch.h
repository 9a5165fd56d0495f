// Two numbers that must agree: what the plan says that a rank holds of its device, and what the
// device's driver says. Asked when the rank is prepared and every few seconds from then on, by a
// thread of its own, so that no launch waits for the driver.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/device/backend.h"

namespace terrace {

// So much of what was planned the driver's figure may lie below it; above it never.
inline constexpr double kDriverAgreement = 0.005;
inline constexpr absl::Duration kDriverAskEvery = absl::Seconds(2);
inline constexpr int kDriverWarningsMax = 8;  // of one rank; a figure that swings says no more then

struct PlannedUse {
  int64_t arena_bytes = 0;    // with the segments of a caching allocator
  int64_t outside_bytes = 0;  // declared
};
// Empty where they agree, or nobody counts; else a sentence with both.
std::string DriverDisagreement(const PlannedUse& planned, const DriverUse& use);

class DriverWatch {
 public:
  // Asks at once. `tell` gets each disagreement when it begins: in here, then on the thread.
  // Borrows the backend. `every`: for tests.
  DriverWatch(Backend* backend, const PlannedUse& planned,
              std::function<void(const std::string&)> tell, absl::Duration every = kDriverAskEvery);
  ~DriverWatch();
  DriverWatch(const DriverWatch&) = delete;
  DriverWatch& operator=(const DriverWatch&) = delete;

  // As last asked.
  DriverUse latest() const ABSL_LOCKS_EXCLUDED(mutex_);
  // That the device has taken between the first answer and the last; 0: nobody counts.
  double EnergyJoules() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Ask() ABSL_LOCKS_EXCLUDED(mutex_);
  void ThreadMain() ABSL_LOCKS_EXCLUDED(mutex_);

  Backend* const backend_;
  const PlannedUse planned_;
  const std::function<void(const std::string&)> tell_;
  const absl::Duration every_;
  int side_ = 0;      // of the plan, where the last figure was: above 1, too far below -1
  int warnings_ = 0;  // told
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  DriverUse latest_ ABSL_GUARDED_BY(mutex_);
  double energy_begin_joules_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace terrace
