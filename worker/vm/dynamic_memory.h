// The memory of step buffers in caching mode: when an instruction is about to run, everything up to
// it is launched in list order, which gives buffers their memory
// (proto/program/allocation_events.h) and writes the addresses into the prepared instructions that
// use them.
//
// List order makes every choice of the allocator, and so every figure, a function of the program:
// streams may reach their instructions in any order, the first that is ahead launches for all.
// Launching waits for nothing that runs, so it adds no way to block.
//
// Create reserves, touched, all that a run will ever need (proto/program/caching_need.h) before the
// job is admitted. Owns the segments; borrows the program. Launch is thread-safe, the rest is used
// only on the thread of the VM while no sequence runs.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/caching/cache.h"
#include "proto/caching/segments.h"
#include "proto/program/allocation_events.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "worker/vm/prepared_program.h"

namespace terrace {

struct DynamicMemoryOptions {
  int threads = 1;          // touch pages
  int64_t limit_bytes = 0;  // of all segments; 0: what the program needs (SegmentBytesNeeded)
  std::unique_ptr<SegmentSource> source;  // null: mapped memory
};

class DynamicMemory {
 public:
  // RESOURCE_EXHAUSTED with the instruction and the buffer when the limit or the system is too
  // small. REQUIRES: CheckProgram passed, UsesCaching(program).
  static absl::StatusOr<std::unique_ptr<DynamicMemory>> Create(const v1::Program& program,
                                                               DynamicMemoryOptions options);
  DynamicMemory(const DynamicMemory&) = delete;
  DynamicMemory& operator=(const DynamicMemory&) = delete;
  ~DynamicMemory();

  // Makes `prepared` (Program.sequences[sequence], all of it) get its addresses from here. It must
  // stay where it is.
  void Bind(int sequence, PreparedSequence* prepared);
  // Until EndWarm the computations of all bound sequences have addresses in one scratch region, for
  // a pass over garbage that runs them one at a time. What is cached makes room for it.
  absl::Status BeginWarm();
  absl::Status EndWarm();

  // Around each execution of a bound sequence. End frees what a failure has left.
  void Begin(int sequence) ABSL_LOCKS_EXCLUDED(mutex_);
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

  // At most so many bytes of segments.
  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t reserved_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the last sequence that trained: at the moment when most was allocated.
  // The arena counts as one segment, its persistent buffers as allocated blocks.
  v1::AllocatorStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Where the address of a buffer goes when it gets one.
  struct Use {
    PreparedInstruction* instruction = nullptr;
    int operand = 0;     // kWorkspace: the workspace
    int64_t offset = 0;  // from the start of the buffer

    void Set(std::byte* buffer) const;
  };
  struct BoundSequence final : Launcher {
    BoundSequence(DynamicMemory* memory, int sequence) : owner(memory), index(sequence) {}
    absl::Status Launch(const PreparedInstruction& instruction) override {
      const uint32_t id = instruction.source->id();
      if (id < launched.load(std::memory_order_acquire)) return absl::OkStatus();
      return owner->LaunchUpTo(id, this);
    }

    DynamicMemory* const owner;
    const int index;                     // in Program.sequences
    std::vector<std::vector<Use>> uses;  // by buffer
    std::atomic<uint32_t> launched{0};   // instructions of the present run
  };

  DynamicMemory(const v1::Program& program, DynamicMemoryOptions options,
                std::vector<AllocationEvents> events);
  absl::Status LaunchUpTo(uint32_t id, BoundSequence* sequence) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Settle() ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t PlaceForWarm(std::byte* scratch);

  const v1::Program& program_;
  const std::vector<AllocationEvents> events_;  // by sequence
  const int64_t limit_bytes_;
  const int64_t persistent_bytes_;  // in buffers of the arena
  const std::unique_ptr<SegmentSource> source_;
  std::vector<std::unique_ptr<BoundSequence>> sequences_;  // null: not bound
  std::byte* scratch_ = nullptr;
  int running_ = -1;  // sequence

  mutable absl::Mutex mutex_;
  BlockCache cache_ ABSL_GUARDED_BY(mutex_);
  BlocksOfBuffers blocks_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);       // of the present run
  CachingStatistics at_peak_ ABSL_GUARDED_BY(mutex_);  // of the present run
  CachingStatistics shown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
