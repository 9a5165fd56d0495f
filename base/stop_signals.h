// Waits for the end that others ask for: SIGTERM, SIGINT, or the death of the parent process.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

class StopSignals {
 public:
  // Blocks both signals in this thread and those it starts later: call before any other thread
  // exists.
  static absl::StatusOr<StopSignals> Block(bool watch_parent);

  // Blocks until one comes. Returns what it was, for the log.
  std::string Wait();

 private:
  UniqueFd signals_;
  UniqueFd parent_;  // a pidfd; invalid: not watched
};

}  // namespace terrace
