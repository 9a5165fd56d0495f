// One thread that runs posted closures in order, and `after_batch` once after each batch of them
// and when the time has come that the last call of it named: the control loop. What only this
// thread touches needs no locks.
//
// There is no tick: each time that a loop wakes up stops a thread that computes, where all
// processors do.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace terrace {

class Loop {
 public:
  Loop() = default;
  ~Loop() { Stop(); }

  // `after_batch` returns how long it need not be called again if nothing is posted; until its
  // first call that is `first`.
  void Start(absl::Duration first, std::function<absl::Duration()> after_batch);
  // Runs what was posted, then ends the thread. Closures posted later are dropped.
  void Stop();

  void Post(std::function<void()> closure);
  // Posts and waits. Not from the loop's thread. False, without having run, when the loop has
  // stopped.
  bool Call(const std::function<void()>& closure);

 private:
  void Run();

  absl::Mutex mutex_;
  std::vector<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration wait_;  // for the next call, from the last
  std::function<absl::Duration()> after_batch_;
  std::thread thread_;
};

}  // namespace terrace
