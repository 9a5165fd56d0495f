// A link that is slower than the network: each message leaves when those before it have left, and
// takes its time. The caller sleeps meanwhile, so that the processor is free for others.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"

namespace terrace {

class Pacer {
 public:
  explicit Pacer(const LinkLimit& limit) : limit_(limit) {}

  static int64_t NowNanos();
  // Until the last byte of a message that was ready at `ready_ns` has crossed the link.
  void Cross(int64_t bytes, int64_t ready_ns) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const LinkLimit limit_;
  absl::Mutex mutex_;
  int64_t free_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // when the last message has crossed
};

}  // namespace terrace
