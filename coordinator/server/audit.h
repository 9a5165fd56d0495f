// The audit log: a line of JSON for each call that changes something, also for one that was
// refused to somebody whose certificate is in order. Appended, never rewritten; a file that has
// grown to its limit is renamed to FILE.1, and so on.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "coordinator/server/access.h"

namespace terrace {

struct AuditRecord {
  std::string call;  // "Cancel"
  std::string job, node;
  std::map<std::string, std::string> arguments;  // what else was asked
  Caller caller;
  absl::Status status;  // what came of it
};

// One line, with its end. Keys that would be empty are left out.
std::string AuditLine(const AuditRecord& record, int64_t unix_ms);

class AuditLog {
 public:
  struct Options {
    std::string path;
    int64_t bytes_max = int64_t{64} << 20;  // of one file
    int files_kept = 8;                     // beside the one that is written
  };
  // Appends to what is there. The file is readable by its owner only.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(Options options);

  // The line is in the file when this returns, but not synced. A line that cannot be written is
  // in the process's log instead: calls go on.
  void Write(const AuditRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // Opens the file anew: something else has moved it away.
  absl::Status Reopen() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit AuditLog(Options options) : options_(std::move(options)) {}
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Rotate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  absl::Mutex mutex_;
  UniqueFd fd_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
