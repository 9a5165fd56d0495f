// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/strings.h"

namespace terrace {

ProbeProgress::ProbeProgress(Options options) : options_(std::move(options)) {
  if (!options_.terminal) options_.write(absl::StrCat("measuring ", options_.what, ", once\n"));
  watcher_ = std::thread(&ProbeProgress::Watch, this);
}

ProbeProgress::~ProbeProgress() {
  {
    const absl::MutexLock lock(&mutex_);
    ended_ = true;
    if (options_.terminal && !phase_.empty()) options_.write("\r\033[K");
  }
  watcher_.join();
}

void ProbeProgress::Show(std::string_view phase, double done) {
  const absl::MutexLock lock(&mutex_);
  phase_ = phase;
  done_ = done;
  if (options_.terminal) options_.write(absl::StrCat("\rmeasuring ", options_.what, ": ", State()));
}

std::string ProbeProgress::State() const {
  return absl::StrFormat("%3.0f %%, %-14s", 100 * done_, phase_);
}

void ProbeProgress::Watch() {
  const absl::Time end = absl::Now() + options_.patience.limit;
  const absl::MutexLock lock(&mutex_);
  while (true) {
    const absl::Time next = std::min(end, absl::Now() + options_.patience.silence);
    if (mutex_.AwaitWithDeadline(absl::Condition(&ended_), next)) return;
    if (absl::Now() >= end) break;
    if (!options_.terminal && !phase_.empty()) {
      options_.write(absl::StrFormat("still measuring %s: %.0f %% done, now %s\n", options_.what,
                                     100 * done_, phase_));
    }
  }
  options_.out_of_time(absl::StrFormat(
      "measuring %s did not end within %s: it stands at %.0f %%, %s; the machine is too busy to be "
      "measured, or a call hangs; run `terrace profile --refresh` when it is idle",
      options_.what, absl::FormatDuration(options_.patience.limit), 100 * done_,
      phase_.empty() ? "the beginning" : phase_));
}

}  // namespace terrace
