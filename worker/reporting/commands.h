// What a rank is told while it runs: go, stop, by its daemon or by a signal.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace terrace {

class Commands {
 public:
  void Go() ABSL_LOCKS_EXCLUDED(mutex_);
  // True when the step loop will see the stop and end by itself; false when there is none yet and
  // the caller ends the process.
  bool Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until Go or Stop.
  void WaitForGo() ABSL_LOCKS_EXCLUDED(mutex_);
  // False when a stop came first: the process is about to end.
  bool BeginTraining() ABSL_LOCKS_EXCLUDED(mutex_);
  const std::atomic<bool>& stop_flag() const { return stop_; }

 private:
  absl::Mutex mutex_;
  bool go_ ABSL_GUARDED_BY(mutex_) = false;
  bool training_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stop_{false};
};

}  // namespace terrace
