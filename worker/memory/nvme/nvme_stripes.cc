// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_stripes.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/memory/nvme/nvme_errors.h"

namespace terrace {
namespace {

struct FileSystem {
  dev_t device = 0;
  int64_t free_bytes = 0;
  int folders = 0;  // of ours on it
  std::string folder;
};

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

absl::StatusOr<std::vector<FileSystem>> FileSystemsOf(std::span<const std::string> folders) {
  std::vector<FileSystem> found;
  for (const std::string& folder : folders) {
    struct stat info = {};
    if (::stat(folder.c_str(), &info) != 0) return NvmeFolderError("use", folder, errno);
    if (!S_ISDIR(info.st_mode)) return NvmeFolderError("use", folder, ENOTDIR);
    struct statvfs space = {};
    if (::statvfs(folder.c_str(), &space) != 0) return NvmeFolderError("use", folder, errno);
    if ((space.f_flag & ST_RDONLY) != 0) return NvmeFolderError("write to", folder, EROFS);
    const auto same = std::find_if(found.begin(), found.end(), [&](const FileSystem& other) {
      return other.device == info.st_dev;
    });
    if (same != found.end()) {
      ++same->folders;
      continue;
    }
    found.push_back({.device = info.st_dev,
                     .free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize),
                     .folders = 1,
                     .folder = folder});
  }
  return found;
}

}  // namespace

absl::StatusOr<NvmeStripes> NvmeStripes::Create(std::span<const std::string> folders,
                                                std::string_view name, int64_t bytes,
                                                int64_t block_bytes) {
  const auto count = static_cast<int64_t>(folders.size());
  const int64_t rounded = RoundUp(bytes, kNvmePageBytes);
  const int64_t units = (rounded + block_bytes - 1) / block_bytes;
  // One file needs no whole unit at its end.
  const int64_t part_bytes = count == 1 ? rounded : (units + count - 1) / count * block_bytes;
  ASSIGN_OR_RETURN(const std::vector<FileSystem> systems, FileSystemsOf(folders));
  for (const FileSystem& system : systems) {
    const int64_t need = system.folders * (part_bytes + kNvmePageBytes);
    if (system.free_bytes < need) return NvmeNoSpace(system.folder, need, system.free_bytes);
  }
  NvmeStripes stripes(rounded, block_bytes, part_bytes);
  for (const std::string& folder : folders) {
    // The number keeps files apart when one folder is named twice.
    const std::string file = absl::StrCat(Absl(name), "-", stripes.parts_.size());
    ASSIGN_OR_RETURN(NvmePart part, NvmePart::Create(folder, file, part_bytes));
    stripes.parts_.push_back(std::move(part));
  }
  return stripes;
}

NvmeStripes::Place NvmeStripes::Locate(int64_t offset) const {
  const auto count = static_cast<int64_t>(parts_.size());
  const int64_t unit = offset / block_bytes_;
  const int64_t within = offset % block_bytes_;
  return {.file = static_cast<int>(unit % count),
          .offset = unit / count * block_bytes_ + within,
          .bytes = block_bytes_ - within};
}

int64_t NvmeStripes::file_bytes() const {
  return static_cast<int64_t>(parts_.size()) * (part_bytes_ + kNvmePageBytes);
}

absl::Status NvmeStripes::CheckSizes() const {
  for (const NvmePart& part : parts_) RETURN_IF_ERROR(part.CheckSize());
  return absl::OkStatus();
}

std::string NvmeStripes::description() const {
  std::string text = absl::StrCat(parts_.size(), parts_.size() == 1 ? " file" : " files");
  std::vector<std::string> modes;
  for (const NvmePart& part : parts_) {
    if (std::find(modes.begin(), modes.end(), part.mode()) == modes.end()) {
      modes.push_back(part.mode());
    }
  }
  for (const std::string& mode : modes) absl::StrAppend(&text, ", ", mode);
  return text;
}

std::string NvmeStripes::slower_because() const {
  for (const NvmePart& part : parts_) {
    if (part.direct()) continue;
    return absl::StrCat(part.path(), " is not read and written directly (", part.mode(),
                        "); name a folder on a file system with O_DIRECT");
  }
  return "";
}

absl::StatusOr<int64_t> NvmeFreeBytes(std::span<const std::string> folders) {
  if (folders.empty()) return 0;
  ASSIGN_OR_RETURN(const std::vector<FileSystem> systems, FileSystemsOf(folders));
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const FileSystem& system : systems) {
    least = std::min(least, system.free_bytes / system.folders - kNvmePageBytes);
  }
  return std::max<int64_t>(least, 0) / kNvmePageBytes * kNvmePageBytes *
         static_cast<int64_t>(folders.size());
}

}  // namespace terrace
