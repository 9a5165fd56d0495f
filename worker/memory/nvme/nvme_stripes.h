// The rank's one NVMe arena as files in several folders: unit i of `block_bytes` lies in file
// i mod n, so that neighbouring requests go to different drives.
//
// Owns the files. Thread rule: thread-safe once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/memory/nvme/nvme_part.h"

namespace terrace {

// Thread-safe.
class NvmeStripes {
 public:
  struct Place {
    int file = 0;
    int64_t offset = 0;
    int64_t bytes = 0;  // to the end of the unit
  };

  // RESOURCE_EXHAUSTED, with the folder, need and free bytes, before anything is written.
  static absl::StatusOr<NvmeStripes> Create(std::span<const std::string> folders,
                                            std::string_view name, int64_t bytes,
                                            int64_t block_bytes);

  Place Locate(int64_t offset) const;
  int64_t bytes() const { return bytes_; }  // rounded up to kNvmePageBytes
  const std::vector<NvmePart>& parts() const { return parts_; }
  int64_t file_bytes() const;  // of all files together
  // DATA_LOSS when something outside truncated a file.
  absl::Status CheckSizes() const;
  // "2 files, O_DIRECT".
  std::string description() const;
  // Which file does without O_DIRECT and why; empty when none does.
  std::string slower_because() const;

 private:
  NvmeStripes(int64_t bytes, int64_t block_bytes, int64_t part_bytes)
      : bytes_(bytes), block_bytes_(block_bytes), part_bytes_(part_bytes) {}

  int64_t bytes_ = 0;
  int64_t block_bytes_ = 0;
  int64_t part_bytes_ = 0;
  std::vector<NvmePart> parts_;
};

// What a file striped over `folders` may take at most: those on one file system share its space.
absl::StatusOr<int64_t> NvmeFreeBytes(std::span<const std::string> folders);

}  // namespace terrace
