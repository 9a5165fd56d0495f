// The body of an answer that is sent while it is made: one side writes parts, the server sends them
// as soon as it can. What is written and not sent yet is bounded.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "absl/synchronization/mutex.h"

namespace terrace {

class HttpStream {
 public:
  // False where nobody reads any more: the connection is gone, or its reader so slow that more than
  // kWaitingMax bytes wait, which ends the stream.
  bool Write(std::string_view part) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing comes any more. May be called again.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

  static constexpr size_t kWaitingMax = 4 << 20;

  // What follows is the server's. Read() takes up to `size` bytes to `to` and returns how many, or
  // kEnd, or kBroken where its reader was too slow. Where nothing is there yet it calls `rest` and
  // returns 0; as soon as something is, `wake` is called, once. Neither may call this object.
  static constexpr ssize_t kEnd = -1, kBroken = -2;
  ssize_t Read(char* to, size_t size, const std::function<void()>& rest, std::function<void()> wake)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody reads any more.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);  // while the reader rests
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
