// One file of the NVMe tier: created in one folder with mode 0600, unlinked at once, so that its
// space is free again however the process ends, and preallocated. It shows in /proc/<pid>/fd as
// "<folder>/.terrace-<name> (deleted)".
//
// Requests bypass the page cache (O_DIRECT) where the file system allows it at 4096 bytes.
//
// A page that is never written lies behind the last one that is: a file that something outside
// truncated never gets its size back by our own writes, so its size tells.
// Owns the file. Thread rule: thread-safe once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

// Every offset, address and size of a request is a multiple of this.
inline constexpr int64_t kNvmePageBytes = 4096;

// Thread-safe.
class NvmePart {
 public:
  static absl::StatusOr<NvmePart> Create(std::string_view folder, std::string_view name,
                                         int64_t bytes);

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }  // where it was, for messages
  // "O_DIRECT", or "page cache: " and what keeps it from O_DIRECT; then ", not preallocated" where
  // the file system cannot.
  const std::string& mode() const { return mode_; }
  bool direct() const { return direct_; }
  // DATA_LOSS when the file is no longer as long as it was made.
  absl::Status CheckSize() const;

 private:
  NvmePart(std::string path, UniqueFd fd, int64_t file_bytes)
      : path_(std::move(path)), fd_(std::move(fd)), file_bytes_(file_bytes) {}
  absl::Status Preallocate();
  absl::Status ChooseMode();

  std::string path_;
  UniqueFd fd_;
  int64_t file_bytes_ = 0;  // with the page behind the data
  bool preallocated_ = true;
  bool direct_ = true;
  std::string mode_;
};

}  // namespace terrace
