// What went wrong on NVMe, in words: every message names the file, the place in it, the system's
// reason and the way out. The codes: DATA_LOSS when bytes are gone or in doubt, RESOURCE_EXHAUSTED
// when space or memory is, UNAVAILABLE when the device does not answer now.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/memory/nvme/nvme_io.h"

namespace terrace {

// "8 MiB", "61.2 GiB", "17 B".
std::string NvmeBytesText(int64_t bytes);

// A request that failed with `error`, an errno value.
absl::Status NvmeRequestError(NvmeDirection direction, std::string_view file, int64_t offset,
                              int64_t bytes, int error);

// A folder of nvme.paths, or the file in it, that cannot be used because of `error`.
absl::Status NvmeFolderError(std::string_view action, std::string_view path, int error);

absl::Status NvmeNoSpace(std::string_view folder, int64_t need_bytes, int64_t free_bytes);

// The file has `size` bytes where it was given `expected`.
absl::Status NvmeTruncated(std::string_view file, int64_t size, int64_t expected);

}  // namespace terrace
