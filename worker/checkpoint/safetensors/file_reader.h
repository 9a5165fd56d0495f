// A regular file, read by range. Nothing of it is mapped: files are larger than the memory that a
// rank may show, and one that another process cuts off is an error here instead of a signal.
//
// Owns the descriptor. Thread-safe after Open.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

class FileReader {
 public:
  static absl::StatusOr<FileReader> Open(std::string_view path);

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // when it was opened
  // All of `to`. DATA_LOSS when the file has become shorter.
  absl::Status Read(int64_t offset, std::span<std::byte> to) const;

 private:
  FileReader(std::string path, UniqueFd fd, int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::string path_;
  UniqueFd fd_;
  int64_t bytes_ = 0;
};

}  // namespace terrace
