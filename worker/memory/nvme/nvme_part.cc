// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_part.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/memory/nvme/nvme_errors.h"

namespace terrace {
namespace {

// Why the file system cannot serve our requests with O_DIRECT; empty when it can, or does not say.
std::string DirectRefusal(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) return "";
  if ((info.stx_mask & STATX_DIOALIGN) == 0) return "";
  if (info.stx_dio_offset_align == 0) return "the file system has no O_DIRECT for this file";
  const uint32_t alignment = std::max(info.stx_dio_mem_align, info.stx_dio_offset_align);
  if (kNvmePageBytes % alignment != 0) {
    return absl::StrCat("its O_DIRECT asks for an alignment of ", alignment, " bytes");
  }
#endif
  return "";
}

int WritePage(int fd, int64_t offset) {
  alignas(kNvmePageBytes) static constexpr std::array<std::byte, kNvmePageBytes> kZeros = {};
  ssize_t written = 0;
  do {
    written = ::pwrite(fd, kZeros.data(), kZeros.size(), offset);
  } while (written < 0 && errno == EINTR);
  if (written < 0) return errno;
  return written == static_cast<ssize_t>(kZeros.size()) ? 0 : ENOSPC;
}

}  // namespace

absl::StatusOr<NvmePart> NvmePart::Create(std::string_view folder, std::string_view name,
                                          int64_t bytes) {
  std::string path = absl::StrCat(Absl(folder), "/.terrace-", Absl(name));
  ::unlink(path.c_str());  // left by a process that died between the next two calls
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return NvmeFolderError("create a file in", folder, errno);
  if (::unlink(path.c_str()) != 0) return NvmeFolderError("unlink", path, errno);
  NvmePart part(std::move(path), std::move(fd), bytes + kNvmePageBytes);
  RETURN_IF_ERROR(part.Preallocate());
  RETURN_IF_ERROR(part.ChooseMode());
  return part;
}

absl::Status NvmePart::Preallocate() {
  int error = 0;
  do {
    error = ::fallocate(fd_.get(), 0, 0, file_bytes_) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP || error == ENOSYS) {
    error = ::ftruncate(fd_.get(), file_bytes_) == 0 ? 0 : errno;
    preallocated_ = false;
  }
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    struct statvfs space = {};
    ::fstatvfs(fd_.get(), &space);
    const auto free = static_cast<int64_t>(space.f_bavail * space.f_frsize);
    if (free < file_bytes_) return NvmeNoSpace(path_, file_bytes_, free);
  }
  if (error != 0) {
    return NvmeFolderError(absl::StrCat("reserve ", NvmeBytesText(file_bytes_), " for"), path_,
                           error);
  }
  return absl::OkStatus();
}

// Some file systems accept the flag and refuse the requests: the page behind the data is written
// once to see.
absl::Status NvmePart::ChooseMode() {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  std::string refusal;
  if (::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT) != 0) {
    refusal = "the file system refuses O_DIRECT";
  } else {
    refusal = DirectRefusal(fd_.get());
  }
  const int64_t page = file_bytes_ - kNvmePageBytes;
  int error = refusal.empty() ? WritePage(fd_.get(), page) : EINVAL;
  if (error == EINVAL) {
    if (refusal.empty()) refusal = "the file system refuses requests of 4096 bytes";
    ::fcntl(fd_.get(), F_SETFL, flags);
    error = WritePage(fd_.get(), page);
  }
  direct_ = refusal.empty();
  mode_ = absl::StrCat(refusal.empty() ? "O_DIRECT" : "page cache: ", refusal,
                       preallocated_ ? "" : ", not preallocated");
  if (error == 0) return absl::OkStatus();
  return NvmeFolderError("write to", path_, error);
}

absl::Status NvmePart::CheckSize() const {
  struct stat info = {};
  if (::fstat(fd_.get(), &info) != 0) return NvmeFolderError("look at", path_, errno);
  if (info.st_size == file_bytes_) return absl::OkStatus();
  return NvmeTruncated(path_, info.st_size, file_bytes_);
}

}  // namespace terrace
