// What whoever waits for a measurement sees of it, and the end of his patience: a line that is
// written anew on a terminal, elsewhere one line at the beginning and one whenever it goes on for
// long. A measurement that does not end in its time is told to the caller, who ends the process:
// what hangs in a library cannot be called back.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace terrace {

struct ProbePatience {
  absl::Duration limit;                        // of the whole measurement
  absl::Duration silence = absl::Seconds(10);  // between two lines where there is no terminal
};

// Thread-safe.
class ProbeProgress {
 public:
  struct Options {
    std::string what;  // "this machine, 1 threads a rank"
    bool terminal = false;
    ProbePatience patience;
    std::function<void(std::string_view)> write;  // of whole lines, or of parts on a terminal
    // Gets a sentence, once, on a thread of its own, when the limit has passed.
    std::function<void(const std::string&)> out_of_time;
  };
  explicit ProbeProgress(Options options);
  ~ProbeProgress();
  ProbeProgress(const ProbeProgress&) = delete;
  ProbeProgress& operator=(const ProbeProgress&) = delete;

  // What is measured now, and the share of all that is done.
  void Show(std::string_view phase, double done);

 private:
  void Watch();
  std::string State() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  absl::Mutex mutex_;
  std::string phase_ ABSL_GUARDED_BY(mutex_);
  double done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace terrace
