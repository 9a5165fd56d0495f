// What the first queue of a file says whose drive did not answer, for the file's other queues: the
// rank is to end, and who asks next would only wait as long again.
// Thread rule: thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace terrace {

// Thread-safe.
class NvmeSilence {
 public:
  // Ok until somebody has told of one.
  absl::Status status() const {
    if (!told_.load(std::memory_order_acquire)) return absl::OkStatus();
    const absl::MutexLock lock(&mutex_);
    return status_;
  }
  // Keeps the first.
  void Tell(const absl::Status& status) {
    const absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = status;
    told_.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> told_ = false;  // so that each transfer asks without a lock
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
