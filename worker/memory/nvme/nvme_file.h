// The NVMe tier of one rank: one preallocated file over one or several folders, which dies with the
// process. Streams move whole pages through queues of their own; checkpoints and initialisation
// read and write any range through Region, by way of a bounce buffer.
//
// Never a wrong number: a truncated file is noticed by every transfer, and with `verify` so is any
// changed page (nvme_checksums.h).
// Owns the files; queues borrow them. Thread rule: thread-safe, as Region says.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/memory/arena.h"
#include "worker/memory/nvme/nvme_checksums.h"
#include "worker/memory/nvme/nvme_queue.h"
#include "worker/memory/nvme/nvme_silence.h"
#include "worker/memory/nvme/nvme_stripes.h"
#include "worker/memory/nvme/nvme_throttle.h"
#include "worker/memory/region.h"

namespace terrace {

inline constexpr int kMaxNvmePaths = 64;
inline constexpr int kMaxNvmeQueueDepth = 1024;
inline constexpr int64_t kMaxNvmeBlockBytes = int64_t{64} << 20;

struct NvmeOptions {
  std::vector<std::string> paths;  // folders, absolute; at most kMaxNvmePaths
  std::string name;                // of the file: job and rank
  int64_t bytes = 0;               // of the arena
  int64_t block_bytes = 0;         // of one request and one stripe; 0: 1 MiB
  int queue_depth = 0;             // requests in flight of one queue; 0: 8
  bool verify = false;             // checksum of each page written, compared on each read
  std::string engine = "auto";     // "auto", "io_uring", "threads"
  int64_t bytes_per_second = 0;    // slows each direction to this; 0: not at all
  absl::Duration timeout = absl::Seconds(120);  // without any answer: then the drive hangs
  BlockIoWrapper wrap;  // around every queue's engine; tests inject faults with it
};

// Thread-safe.
class NvmeFile final : public Region {
 public:
  // INVALID_ARGUMENT names the option; RESOURCE_EXHAUSTED the folder, its need and what is free;
  // otherwise what is wrong with a folder.
  static absl::StatusOr<std::unique_ptr<NvmeFile>> Create(NvmeOptions options);

  std::byte* data() const override { return nullptr; }
  int64_t bytes() const override { return options_.bytes; }
  absl::Status Read(int64_t offset, std::span<std::byte> to) override;
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override;

  // For one thread; must not outlive the file.
  absl::StatusOr<std::unique_ptr<NvmeQueue>> NewQueue();

  int64_t file_bytes() const { return stripes_.file_bytes(); }  // reserved in the folders
  // "2 files, O_DIRECT".
  std::string description() const { return stripes_.description(); }

 private:
  NvmeFile(NvmeOptions options, NvmeStripes stripes, std::optional<NvmeChecksums> checksums);
  absl::Status CheckRange(int64_t offset, size_t count) const;
  absl::Status PrepareBounce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Between the start of the bounce buffer and whole pages of the file.
  absl::Status MovePages(NvmeDirection direction, int64_t offset, int64_t bounce_offset,
                         int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NvmeOptions options_;
  const NvmeStripes stripes_;
  std::optional<NvmeChecksums> checksums_;
  NvmeThrottle throttle_;
  NvmeSilence silence_;
  absl::Mutex mutex_;  // of the bounce buffer: a page's neighbours are read and written back
  std::unique_ptr<NvmeQueue> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<Arena> bounce_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
