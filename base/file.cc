// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr int64_t kLockPollMs = 20;
constexpr size_t kWriteChunkBytes = size_t{64} << 20;  // under the system's 2 GiB limit of one call

// What a path leads to, as the sentence of an error names it.
std::string_view KindOf(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "no file";
}

absl::Status NotRegular(mode_t mode, std::string_view path) {
  if (S_ISDIR(mode)) return FileError(EISDIR, "read", path);
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", Absl(path), ": it is ",
                                                 Absl(KindOf(mode)),
                                                 ", must be a regular file; write what it would "
                                                 "give to a file, and name that"));
}

}  // namespace

absl::Status FileError(int error, std::string_view action, std::string_view path) {
  const std::string message =
      absl::StrCat("cannot ", Absl(action), " ", Absl(path), ": ",
                   std::error_code(error, std::generic_category()).message());
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(
          absl::StrCat(message, "; free some space or choose another folder"));
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::Status(absl::ErrnoToStatusCode(error), message);
  }
}

absl::StatusOr<OpenFile> OpenRegularFile(std::string_view path_view) {
  const std::string path(path_view);
  struct stat info = {};
  // Before it is opened as well: to open a device may set it going.
  if (::stat(path.c_str(), &info) != 0) return FileError(errno, "open", path);
  if (!S_ISREG(info.st_mode)) return NotRegular(info.st_mode, path);
  OpenFile file;
  file.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.fd.valid()) return FileError(errno, "open", path);
  if (::fstat(file.fd.get(), &info) != 0) return FileError(errno, "read", path);
  if (!S_ISREG(info.st_mode)) return NotRegular(info.st_mode, path);
  file.bytes = info.st_size;
  file.modified_unix_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return file;
}

absl::Status CheckIsFileOrFolder(std::string_view path) {
  struct stat info = {};
  if (::stat(std::string(path).c_str(), &info) != 0) return absl::OkStatus();
  if (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return absl::OkStatus();
  return NotRegular(info.st_mode, path);
}

absl::StatusOr<MappedFile> MappedFile::Open(std::string_view path) {
  ASSIGN_OR_RETURN(const OpenFile opened, OpenRegularFile(path));
  MappedFile file;
  file.modified_unix_ns_ = opened.modified_unix_ns;
  if (opened.bytes == 0) return file;
  void* data = ::mmap(nullptr, opened.bytes, PROT_READ, MAP_SHARED, opened.fd.get(), 0);
  if (data == MAP_FAILED) return FileError(errno, "map", path);
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = opened.bytes;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_unix_ns_, other.modified_unix_ns_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

absl::StatusOr<std::string> ReadTextFile(std::string_view path, int64_t limit_bytes) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenRegularFile(path));
  if (file.bytes > limit_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(path), " has ", file.bytes,
                                                   " bytes, more than the limit of ", limit_bytes));
  }
  std::string text(file.bytes, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(file.fd.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, "read", path);
    if (got == 0) break;  // cut off meanwhile
    have += got;
  }
  text.resize(have);
  return text;
}

absl::StatusOr<UniqueFd> CreateFile(std::string_view path_view) {
  const std::string path(path_view);
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!fd.valid()) return FileError(errno, "create", path);
  return fd;
}

absl::Status WriteAll(const UniqueFd& fd, std::span<const std::byte> bytes, std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(fd.get(), bytes.data(), std::min(bytes.size(), kWriteChunkBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(errno, "write", path);
    bytes = bytes.subspan(written);
  }
  return absl::OkStatus();
}

absl::Status WriteSyncedFile(std::string_view path, std::string_view text) {
  ASSIGN_OR_RETURN(const UniqueFd fd, CreateFile(path));
  RETURN_IF_ERROR(WriteAll(fd, std::as_bytes(std::span(text)), path));
  return SyncFile(fd, path);
}

absl::Status SyncFile(const UniqueFd& fd, std::string_view path) {
  return ::fsync(fd.get()) == 0 ? absl::OkStatus() : FileError(errno, "sync", path);
}

absl::Status SyncDirectory(std::string_view path) {
  UniqueFd fd(::open(std::string(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return FileError(errno, "open", path);
  return SyncFile(fd, path);
}

absl::Status Rename(std::string_view from, std::string_view to) {
  struct stat info = {};
  // To root the system would give its place, be it /dev/null.
  if (::stat(std::string(to).c_str(), &info) == 0 &&
      (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot replace ", Absl(to), ": it is a device; name another file"));
  }
  if (::rename(std::string(from).c_str(), std::string(to).c_str()) == 0) return absl::OkStatus();
  return FileError(errno, absl::StrCat("rename ", Absl(from), " to"), to);
}

absl::Status MakeDirectories(std::string_view path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path), error);
  return error ? FileError(error.value(), "create the folder", path) : absl::OkStatus();
}

absl::Status RemoveAll(std::string_view path) {
  std::error_code error;
  std::filesystem::remove_all(std::filesystem::path(path), error);
  return error ? FileError(error.value(), "remove", path) : absl::OkStatus();
}

absl::StatusOr<UniqueFd> LockFile(std::string_view path, int64_t timeout_ms) {
  UniqueFd fd(::open(std::string(path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return FileError(errno, "open the lock", path);
  for (int64_t waited_ms = 0; ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0; waited_ms += kLockPollMs) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FileError(errno, "lock", path);
    if (waited_ms >= timeout_ms) {
      return absl::UnavailableError(absl::StrCat("another process holds ", Absl(path)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kLockPollMs));
  }
  return fd;
}

}  // namespace terrace
