// One writer for a checkpoint directory: two jobs that save into the same folder would prune each
// other's checkpoints.
//
// A lock on <directory>/.lock, which says whose it is: a line with the job and one with the number
// of its start. The kernel releases it when the process ends, however it ends. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

// Who takes a lock.
struct LockHolder {
  std::string job;
  int64_t epoch = 0;  // of the job's starts: a later one is greater
};

// How long to wait for a lock that is held.
struct LockPatience {
  int64_t ms = 0;  // by another job, or the rank that this one replaces is still dying
  // By an earlier start of the same job, on a machine that does not answer: what it holds comes
  // free when the machine is back, which ends that rank, or when the file system gives it up.
  int64_t earlier_ms = 0;
};

class DirectoryLock {
 public:
  // When another process holds it all that time, with the folder and the way out:
  // FAILED_PRECONDITION where that is another job, UNAVAILABLE where it is an earlier start of
  // this one.
  static absl::StatusOr<DirectoryLock> Take(std::string_view directory, const LockHolder& holder,
                                            const LockPatience& patience);

 private:
  explicit DirectoryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace terrace
