// One writer for a checkpoint directory: two jobs that save into the same folder would prune each
// other's checkpoints.
//
// A lock on <directory>/.lock, which says whose it is. The kernel releases it when the process
// ends, however it ends. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

class DirectoryLock {
 public:
  // Waits up to `patience_ms`: the rank that this one replaces may still be dying.
  // FAILED_PRECONDITION, with the folder, whose it is and the way out, when another process holds
  // it all that time. `job` is who takes it.
  static absl::StatusOr<DirectoryLock> Take(std::string_view directory, std::string_view job,
                                            int64_t patience_ms);

 private:
  explicit DirectoryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace terrace
