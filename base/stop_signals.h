// Waits for the end that others ask for: SIGTERM, SIGINT, or the death of the parent process; and,
// for a service, for SIGHUP, which asks it to read its files again.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

class StopSignals {
 public:
  // Blocks both signals in this thread and those it starts later: call before any other thread
  // exists.
  static absl::StatusOr<StopSignals> Block(bool watch_parent);

  // From now on SIGHUP is blocked too. Call with Block().
  absl::Status AlsoReload();

  // Blocks until one comes. Returns what it was, for the log. `reload` is called for each SIGHUP,
  // and when `is_due`, which is asked every few seconds, says so.
  std::string Wait(const std::function<void()>& reload = nullptr,
                   const std::function<bool()>& is_due = nullptr);

 private:
  absl::Status Take(std::initializer_list<int> signals);
  int WaitForOne(int timeout_ms);  // 0: the parent process has ended

  UniqueFd signals_;
  UniqueFd parent_;  // a pidfd; invalid: not watched
};

}  // namespace terrace
