// Moves pieces between the host's memory and the file on NVMe: cuts them into blocks, keeps
// `depth` of them in flight, continues short ones, and returns when all are done. After the first
// use nothing is allocated.
//
// With checksums, each block's pages are hashed while the block is on its way to the drive, and
// compared as soon as it has been read, while others are on their way.
//
// A block that is not answered at all for `timeout` breaks the queue and the file's other queues:
// its memory still belongs to the system, so the caller must not reuse it; the rank is expected to
// end.
// Thread rule: one queue a thread; queues of one file run at once, for different bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/memory/nvme/nvme_checksums.h"
#include "worker/memory/nvme/nvme_io.h"
#include "worker/memory/nvme/nvme_silence.h"
#include "worker/memory/nvme/nvme_stripes.h"
#include "worker/memory/nvme/nvme_throttle.h"

namespace terrace {

// All three are multiples of kNvmePageBytes.
struct NvmePiece {
  int64_t offset = 0;  // in the rank's file
  std::byte* memory = nullptr;
  int64_t bytes = 0;
};

struct NvmeCounters {
  int64_t bytes = 0;
  double seconds = 0;  // inside Transfer
};

// Thread-compatible; counters() from any thread.
class NvmeQueue {
 public:
  // Borrows all but `io`; `checksums` may be null.
  NvmeQueue(const NvmeStripes& stripes, NvmeChecksums* checksums, NvmeThrottle* throttle,
            NvmeSilence* silence, std::unique_ptr<BlockIo> io, int depth, absl::Duration timeout);

  // Makes requests from and to `memory` cheaper, where the limits of the process allow it
  // (RLIMIT_MEMLOCK). It must stay mapped as long as the queue lives.
  void RegisterMemory(std::span<std::byte> memory) { io_->RegisterMemory(memory); }

  // DATA_LOSS: the drive fails, or what was read is not what was written. RESOURCE_EXHAUSTED: the
  // drive is full. UNAVAILABLE: it stays busy or is gone. DEADLINE_EXCEEDED: it does not answer.
  absl::Status Transfer(NvmeDirection direction, std::span<const NvmePiece> pieces);

  NvmeCounters counters(NvmeDirection direction) const;
  // "io_uring, registered files, unregistered buffers: memlock 8 MiB, ...; 2 files, O_DIRECT".
  std::string description() const;
  // What makes it slower than the drive could be and the way out; empty when nothing does.
  std::string slower_because() const;

 private:
  struct Slot {
    BlockRequest request;       // what is still to do
    int64_t file_offset = 0;    // of the whole block, in the rank's file
    std::span<std::byte> data;  // the whole block
    int retries = 0;            // since the last progress
  };
  struct Cursor {
    std::span<const NvmePiece> pieces;
    size_t piece = 0;
    int64_t done = 0;  // of that piece
    bool More();
  };

  absl::Status CheckPieces(std::span<const NvmePiece> pieces) const;
  absl::Status Run(NvmeDirection direction, Cursor cursor);
  absl::Status StartNext(NvmeDirection direction, Cursor& cursor);
  absl::Status Start(Slot& slot);
  // How many results; 0 when none will come: broken_ says why.
  int Reap();
  // Takes in one result; starts the rest of a short one unless `stopping`.
  absl::Status Finish(const BlockResult& result, bool stopping);
  absl::Status Advance(Slot& slot, int64_t result, bool& again);
  absl::Status Verify(const Slot& slot) const;
  absl::Status Failed(const Slot& slot, int error) const;

  const NvmeStripes& stripes_;
  NvmeChecksums* const checksums_;
  NvmeThrottle* const throttle_;
  NvmeSilence* const silence_;  // of the file
  const std::unique_ptr<BlockIo> io_;
  const absl::Duration timeout_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<BlockResult> results_;
  NvmeThrottle::Time turn_ends_ = NvmeThrottle::Time::min();
  absl::Status broken_;  // not ok: requests are lost in the system
  std::array<std::atomic<int64_t>, 2> bytes_ = {};
  std::array<std::atomic<int64_t>, 2> nanos_ = {};
};

}  // namespace terrace
