// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kDefaultBlockBytes = int64_t{1} << 20;
constexpr int kDefaultQueueDepth = 8;
constexpr int64_t kBounceBytes = int64_t{8} << 20;

int64_t PageBegin(int64_t offset) { return offset / kNvmePageBytes * kNvmePageBytes; }
int64_t PageEnd(int64_t offset) { return PageBegin(offset + kNvmePageBytes - 1); }

absl::Status CheckPaths(const std::vector<std::string>& paths) {
  if (paths.empty()) {
    return absl::InvalidArgumentError("nvme.paths: name at least one folder on an NVMe drive");
  }
  if (paths.size() > kMaxNvmePaths) {
    return absl::InvalidArgumentError(
        absl::StrCat("nvme.paths: ", paths.size(), " folders, at most ", kMaxNvmePaths));
  }
  for (const std::string& path : paths) {
    if (path.empty() || path[0] != '/') {
      return absl::InvalidArgumentError(
          absl::StrCat("nvme.paths: \"", path, "\" is not an absolute path"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const NvmeOptions& options) {
  RETURN_IF_ERROR(CheckPaths(options.paths));
  if (options.name.empty() || options.name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("nvme: \"", options.name, "\" is no name of a file"));
  }
  if (options.bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("nvme: a file of ", options.bytes, " bytes"));
  }
  if (options.block_bytes < kNvmePageBytes || options.block_bytes % kNvmePageBytes != 0 ||
      options.block_bytes > kMaxNvmeBlockBytes) {
    return absl::InvalidArgumentError(absl::StrCat("nvme.block_bytes: ", options.block_bytes,
                                                   " is not a multiple of ", kNvmePageBytes,
                                                   " up to ", kMaxNvmeBlockBytes));
  }
  if (options.queue_depth < 1 || options.queue_depth > kMaxNvmeQueueDepth) {
    return absl::InvalidArgumentError(absl::StrCat("nvme.queue_depth: ", options.queue_depth,
                                                   " is not in 1..", kMaxNvmeQueueDepth));
  }
  if (options.bytes_per_second < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("nvme.bytes_per_second: ", options.bytes_per_second, " is negative"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeFile>> NvmeFile::Create(NvmeOptions options) {
  if (options.block_bytes == 0) options.block_bytes = kDefaultBlockBytes;
  if (options.queue_depth == 0) options.queue_depth = kDefaultQueueDepth;
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(NvmeStripes stripes, NvmeStripes::Create(options.paths, options.name,
                                                            options.bytes, options.block_bytes));
  std::optional<NvmeChecksums> checksums;
  if (options.verify) {
    ASSIGN_OR_RETURN(checksums, NvmeChecksums::Create(stripes.bytes()));
  }
  std::unique_ptr<NvmeFile> file(
      new NvmeFile(std::move(options), std::move(stripes), std::move(checksums)));
  // An engine that the system refuses is told now, not by the first step.
  RETURN_IF_ERROR(file->NewQueue().status());
  return file;
}

NvmeFile::NvmeFile(NvmeOptions options, NvmeStripes stripes, std::optional<NvmeChecksums> checksums)
    : options_(std::move(options)),
      stripes_(std::move(stripes)),
      checksums_(std::move(checksums)),
      throttle_(options_.bytes_per_second) {}

absl::StatusOr<std::unique_ptr<NvmeQueue>> NvmeFile::NewQueue() {
  std::vector<int> files;
  for (const NvmePart& part : stripes_.parts()) files.push_back(part.fd());
  ASSIGN_OR_RETURN(std::unique_ptr<BlockIo> io,
                   NewBlockIo(options_.engine, files, options_.queue_depth));
  if (options_.wrap) io = options_.wrap(std::move(io));
  return std::make_unique<NvmeQueue>(stripes_, checksums_ ? &*checksums_ : nullptr, &throttle_,
                                     &silence_, std::move(io), options_.queue_depth,
                                     options_.timeout);
}

absl::Status NvmeFile::CheckRange(int64_t offset, size_t count) const {
  if (offset >= 0 && offset <= bytes() && static_cast<int64_t>(count) <= bytes() - offset) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      absl::StrCat("nvme: ", count, " bytes at ", offset, " of a file of ", bytes()));
}

absl::Status NvmeFile::PrepareBounce() {
  if (!bounce_.has_value()) {
    ASSIGN_OR_RETURN(
        bounce_, Arena::Reserve("terrace-nvme-bounce", std::min(kBounceBytes, stripes_.bytes())));
  }
  if (queue_ == nullptr) {
    ASSIGN_OR_RETURN(queue_, NewQueue());
  }
  return absl::OkStatus();
}

absl::Status NvmeFile::MovePages(NvmeDirection direction, int64_t offset, int64_t bounce_offset,
                                 int64_t bytes) {
  const NvmePiece piece = {
      .offset = offset, .memory = bounce_->data() + bounce_offset, .bytes = bytes};
  return queue_->Transfer(direction, {&piece, 1});
}

absl::Status NvmeFile::Read(int64_t offset, std::span<std::byte> to) {
  RETURN_IF_ERROR(CheckRange(offset, to.size()));
  const absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(PrepareBounce());
  while (!to.empty()) {
    const int64_t begin = PageBegin(offset);
    const int64_t wanted = PageEnd(offset + static_cast<int64_t>(to.size())) - begin;
    const int64_t bytes = std::min(wanted, bounce_->bytes());
    RETURN_IF_ERROR(MovePages(NvmeDirection::kRead, begin, 0, bytes));
    const int64_t skip = offset - begin;
    const size_t count = std::min(to.size(), static_cast<size_t>(bytes - skip));
    std::memcpy(to.data(), bounce_->data() + skip, count);
    to = to.subspan(count);
    offset += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

absl::Status NvmeFile::Write(int64_t offset, std::span<const std::byte> from) {
  RETURN_IF_ERROR(CheckRange(offset, from.size()));
  const absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(PrepareBounce());
  while (!from.empty()) {
    const int64_t begin = PageBegin(offset);
    const int64_t wanted = PageEnd(offset + static_cast<int64_t>(from.size())) - begin;
    const int64_t bytes = std::min(wanted, bounce_->bytes());
    const int64_t skip = offset - begin;
    const size_t count = std::min(from.size(), static_cast<size_t>(bytes - skip));
    // What else lies in the first and in the last page stays.
    const int64_t end = skip + static_cast<int64_t>(count);
    const int64_t last = bytes - kNvmePageBytes;
    const bool part_of_last = end < bytes;
    if (skip > 0 || (part_of_last && last == 0)) {
      RETURN_IF_ERROR(MovePages(NvmeDirection::kRead, begin, 0, kNvmePageBytes));
    }
    if (part_of_last && last > 0) {
      RETURN_IF_ERROR(MovePages(NvmeDirection::kRead, begin + last, last, kNvmePageBytes));
    }
    std::memcpy(bounce_->data() + skip, from.data(), count);
    RETURN_IF_ERROR(MovePages(NvmeDirection::kWrite, begin, 0, bytes));
    from = from.subspan(count);
    offset += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace terrace
