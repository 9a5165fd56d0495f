// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/safetensors/file_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr size_t kCallBytes = size_t{64} << 20;  // under the system's 2 GiB limit of one call

}  // namespace

absl::StatusOr<FileReader> FileReader::Open(std::string_view path) {
  ASSIGN_OR_RETURN(OpenFile file, OpenRegularFile(path));
  return FileReader(std::string(path), std::move(file.fd), file.bytes);
}

absl::Status FileReader::Read(int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t bytes = ::pread(fd_.get(), to.data(), std::min(to.size(), kCallBytes), offset);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return FileError(errno, "read", path_);
    if (bytes == 0) {
      return absl::DataLossError(absl::StrCat(path_, " ends at byte ", offset, ", it had ", bytes_,
                                              " when it was opened; was it cut off?"));
    }
    offset += bytes;
    to = to.subspan(bytes);
  }
  return absl::OkStatus();
}

}  // namespace terrace
