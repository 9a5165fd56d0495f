// How the ranks of a job whose devices are GPUs find each other: over NCCL where each has a GPU of
// its own, staged through the host where some share one.
//
// All collectives of a rank run on one CUDA stream, which this owns. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/queue.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/transport.h"

namespace terrace {

class CudaGroups {
 public:
  explicit CudaGroups(const kernels::cuda::Device& device) : device_(device) {}

  // All ranks of the job call this before their first group is connected. `wants_graphs`: whether
  // this one would have its collectives in graphs.
  absl::Status Meet(uint32_t rank, uint32_t ranks, bool wants_graphs, RendezvousStore* store,
                    int64_t timeout_ms);
  // The stream of all collectives, where they can be captured: all ranks want that, and there is a
  // group over NCCL. Null otherwise.
  CUstream_st* captured_stream() const {
    return all_want_graphs_ && has_nccl_ ? queue_->stream() : nullptr;
  }
  // Of the ranks of the job on this one's device: how many they are, the sum and the largest of
  // what each has told.
  struct Sharers {
    int ranks = 1;
    int64_t bytes = 0;
    int64_t most_bytes = 0;
  };
  // Returns when all of them have called it, each as often as the others. REQUIRES: they met in the
  // same store.
  absl::StatusOr<Sharers> MeetSharers(int64_t own_bytes, RendezvousStore* store);
  // The device arena, which groups that are connected from then on use in place where they can. It
  // outlives them.
  void SetArena(NcclMemory arena) { arena_ = std::move(arena); }
  // On the thread whose device it is. REQUIRES: options.ranks are ranks of the job.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupOptions& options,
                                                        RendezvousStore* store);

 private:
  const kernels::cuda::Device& device_;
  std::unique_ptr<kernels::cuda::Queue> queue_;  // of collectives
  std::vector<RankDevice> devices_;              // of all ranks
  bool all_want_graphs_ = false, has_nccl_ = false;
  uint32_t rank_ = 0;
  int64_t timeout_ms_ = 0;
  int meetings_ = 0;
  NcclMemory arena_;
};

}  // namespace terrace
