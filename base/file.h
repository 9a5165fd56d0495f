// Files, with errors that people can read: every failure names the path, what was tried and the
// system's reason. A full disk is RESOURCE_EXHAUSTED, a missing file NOT_FOUND, a refused one
// PERMISSION_DENIED.
//
// MappedFile owns its mapping; spans into it live as long as it does. Thread-safe after Open.
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

// "cannot <action> <path>: <reason>". `error` is an errno value.
absl::Status FileError(int error, std::string_view action, std::string_view path);

// A regular file, open for reading.
struct OpenFile {
  UniqueFd fd;
  int64_t bytes = 0;  // when it was opened
  int64_t modified_unix_ns = 0;
};
// Waits for nobody: to open a FIFO for reading would last until somebody writes into it, which a
// path that a user names must not bring about. INVALID_ARGUMENT says what is there instead of a
// regular file.
absl::StatusOr<OpenFile> OpenRegularFile(std::string_view path);

// OK for a regular file or a folder, and where nothing is to be seen: another machine may see it.
// INVALID_ARGUMENT, as OpenRegularFile() says it, for what can be neither.
absl::Status CheckIsFileOrFolder(std::string_view path);

// A whole regular file, read-only, shared with the page cache. Shrinking the file meanwhile is a
// fault of the other side that the system reports with SIGBUS: files of ours are replaced by
// renaming, never truncated.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(std::string_view path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  int64_t modified_unix_ns() const { return modified_unix_ns_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_unix_ns_ = 0;
};

// Reads a small text file, of which nothing is mapped: another process may cut it off meanwhile.
// INVALID_ARGUMENT when it is larger than `limit_bytes`.
absl::StatusOr<std::string> ReadTextFile(std::string_view path, int64_t limit_bytes);

// Opens for writing; an existing file is emptied. Waits for nobody, as OpenRegularFile().
absl::StatusOr<UniqueFd> CreateFile(std::string_view path);
// Writes all of `bytes`, whatever the system accepts at once.
absl::Status WriteAll(const UniqueFd& fd, std::span<const std::byte> bytes, std::string_view path);
// Creates or replaces, then fsyncs. Not atomic.
absl::Status WriteSyncedFile(std::string_view path, std::string_view text);
absl::Status SyncFile(const UniqueFd& fd, std::string_view path);
// Makes creations, renames and removals inside `path` durable.
absl::Status SyncDirectory(std::string_view path);
absl::Status Rename(std::string_view from, std::string_view to);
// With its parents; an existing one is fine.
absl::Status MakeDirectories(std::string_view path);
// With all it contains; a missing one is fine.
absl::Status RemoveAll(std::string_view path);

// An exclusive flock, released when the result dies (or its process). Waits up to `timeout_ms`,
// calling nothing meanwhile; 0 tries once. UNAVAILABLE when another process keeps it.
absl::StatusOr<UniqueFd> LockFile(std::string_view path, int64_t timeout_ms);

}  // namespace terrace
