// Measures this worker's profile anew where it is in doubt: because something else ran while it was
// measured, or because a job went another way than its plan. That is done by `terrace-rank probe`,
// when no rank is here and the machine is quiet; it ends at once when a rank comes. What a job has
// put in doubt is wrong for certain: where the machine does not become quiet it is measured beside
// whatever runs.
//
// Used only on the daemon's loop; the process is read and waited for on a thread of its own.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "proto/v1/hardware.pb.h"

namespace terrace {

class ProfileKeeper {
 public:
  struct Options {
    std::string rank_binary;
    std::vector<std::string> of;             // the probe's arguments that say what is measured
    absl::Duration rest = absl::Seconds(2);  // without ranks, before the first look
    absl::Duration look_again = absl::Seconds(5);  // after one that found the machine busy; doubles
    absl::Duration look_again_max = absl::Minutes(5);
    absl::Duration patience = absl::Seconds(20);  // without ranks, for the machine to become quiet
  };
  struct Ports {
    std::function<void(std::function<void()>)> post;  // onto the loop
    std::function<void(const v1::HardwareProfile&)> changed;
  };

  ProfileKeeper(Options options, Ports ports, v1::HardwareProfile present);
  ~ProfileKeeper();

  // A job went another way than its plan; a sentence.
  void Doubt(const std::string& why);
  // Does what is due. `idle`: no rank is here. How long the next call may wait.
  absl::Duration Advance(bool idle, absl::Time now);
  // Ends what runs, and begins nothing more. REQUIRED while the loop still runs, which gets its
  // end.
  void Stop();
  const v1::HardwareProfile& present() const { return present_; }

 private:
  enum class Work { kNone, kMark, kMeasure };

  absl::Status Start(Work work, std::vector<std::string> arguments);
  void ReadToEnd(UniqueFd output);
  void Kill();
  void Finished(const std::string& output);
  void LookLater(absl::Time now);
  void TakeMeasured(const std::string& json);

  const Options options_;
  const Ports ports_;
  v1::HardwareProfile present_;
  std::string told_;      // by a job; empty: none did since the last measurement
  bool to_mark_ = false;  // what is kept does not know it yet
  Work work_ = Work::kNone;
  bool killed_ = false;
  bool stopped_ = false;
  absl::Time idle_since_ = absl::InfiniteFuture();
  absl::Time next_look_ = absl::InfiniteFuture();
  absl::Duration pause_;
  std::thread reader_;
  absl::Mutex mutex_;
  pid_t pid_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none, or it was waited for
};

}  // namespace terrace
