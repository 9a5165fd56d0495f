// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_errors.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr char kResume[] = "; the job can go on from its last checkpoint";

}  // namespace

std::string NvmeBytesText(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  const bool whole = value == static_cast<double>(static_cast<int64_t>(value));
  return absl::StrFormat("%.*f %s", whole ? 0 : 1, value, kUnits[unit]);
}

absl::Status NvmeRequestError(NvmeDirection direction, std::string_view file, int64_t offset,
                              int64_t bytes, int error) {
  const bool write = direction == NvmeDirection::kWrite;
  const std::string what =
      absl::StrCat("nvme: cannot ", write ? "write " : "read ", bytes, " bytes at ", offset, " of ",
                   Absl(file), ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(absl::StrCat(
          what, "; free some space there or name another folder in nvme.paths", kResume));
    case ENOMEM:
      return absl::ResourceExhaustedError(absl::StrCat(
          what, "; the system is out of memory: lower nvme.queue_depth or host_memory", kResume));
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ENODEV:
    case ENXIO:
    case ETIMEDOUT:
      return absl::UnavailableError(
          absl::StrCat(what, "; check that the drive is still there (dmesg)", kResume));
    case EROFS:
    case EACCES:
    case EPERM:
      return absl::FailedPreconditionError(absl::StrCat(
          what, "; the file system became read-only or forbidden: check dmesg", kResume));
    case EINVAL:
    case EBADF:
    case EFAULT:
      return absl::InternalError(what);
    default:  // EIO and its relatives
      return absl::DataLossError(absl::StrCat(
          what, "; the drive is failing (dmesg, smartctl): name another folder in nvme.paths",
          kResume));
  }
}

absl::Status NvmeFolderError(std::string_view action, std::string_view path, int error) {
  const std::string what = absl::StrCat("nvme.paths: cannot ", Absl(action), " ", Absl(path), ": ",
                                        std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(
          absl::StrCat(what, "; mount the drive or create the folder on every node"));
    case ENOTDIR:
      return absl::InvalidArgumentError(absl::StrCat(what, "; name a folder"));
    case EROFS:
      return absl::FailedPreconditionError(
          absl::StrCat(what, "; mount it writable or name another folder"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          absl::StrCat(what, "; let the worker's user write there or name another folder"));
    case EIO:
      return absl::DataLossError(
          absl::StrCat(what, "; the drive is failing (dmesg, smartctl): name another folder"));
    default:
      return absl::Status(absl::ErrnoToStatusCode(error), what);
  }
}

absl::Status NvmeNoSpace(std::string_view folder, int64_t need_bytes, int64_t free_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("nvme.paths: ", Absl(folder), " has ", NvmeBytesText(free_bytes),
                   " free and this rank needs ", NvmeBytesText(need_bytes), " there; free ",
                   NvmeBytesText(need_bytes - free_bytes),
                   ", name folders on more drives, or offload less to nvme"));
}

absl::Status NvmeTruncated(std::string_view file, int64_t size, int64_t expected) {
  return absl::DataLossError(
      absl::StrCat("nvme: ", Absl(file), " has ", size, " bytes instead of ", expected,
                   ": something outside truncated it; find out what cleans that folder", kResume));
}

}  // namespace terrace
