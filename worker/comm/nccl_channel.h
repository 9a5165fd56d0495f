// One communicator of NCCL with its CUDA stream: how it is connected, how a call on it is waited
// for, and how it is given up. A group has one for its collectives and one for each direction of
// messages.
//
// A call goes Begin, Launch once or more, Finish. No call of NCCL blocks: the communicator is made
// non-blocking, and whatever goes on is asked for in a loop that also sees Abort, the failure of
// another channel of the group, asynchronous errors and the deadline.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"

namespace terrace {

// What the channels of one group share: its name for messages, and whether it is broken.
// Thread-safe.
class NcclGroup {
 public:
  explicit NcclGroup(const GroupOptions& options) : options_(options) {}

  const GroupOptions& options() const { return options_; }
  // Its rank in the job.
  uint32_t RankOf(int member) const;
  void Abort() { aborted_.store(true); }
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  // The first failure counts.
  void Break(const absl::Status& failure) ABSL_LOCKS_EXCLUDED(mutex_);
  // CANCELLED after Abort, else the first failure.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const GroupOptions options_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> broken_{false};
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

// Used on one thread at a time, any.
class NcclChannel {
 public:
  // What a call does, for messages: "all-reduce of 4096 elements".
  struct Operation {
    std::string_view name;
    int64_t amount = 0;
    std::string_view unit;
    int peer = -1;  // of a message
  };
  struct Place {
    int rank = 0;
    int size = 1;
    int max_ctas = 0;  // thread blocks that a kernel of NCCL may have; 0: as NCCL likes
  };

  // Returns when all members are there. `stream`: null for one of its own. Borrows the group and
  // the stream. A place of size 1 has no communicator: only the stream.
  static absl::StatusOr<std::unique_ptr<NcclChannel>> Connect(NcclGroup* group, const Place& place,
                                                              const ncclUniqueId& id,
                                                              cudaStream_t stream);
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  cudaStream_t stream() const { return stream_; }
  ncclComm_t comm() const { return comm_; }

  // `expected_ns`: what it takes beside waiting for members.
  absl::Status Begin(const Operation& operation, int64_t expected_ns = 0);
  // `start` makes one call of NCCL, or one group of them. Returns when it is on the stream.
  absl::Status Launch(absl::FunctionRef<ncclResult_t()> start);
  // Puts a copy on the stream; none where both are the same.
  absl::Status Copy(void* out, const void* in, int64_t bytes);
  // Waits until all that was launched has run; only puts it on the stream while that is captured.
  absl::Status Finish();
  void SetCaptured(bool captured) { captured_ = captured; }
  // Between Begin and the end of something that is waited for elsewhere: whether it can still end.
  absl::Status Check();

  // Lets operations of this communicator use the memory in place. Empty, or why NCCL does not want
  // to: nothing is registered then, and all else goes on.
  absl::StatusOr<std::string> Register(void* memory, int64_t bytes);
  // All of it. REQUIRES: nothing runs.
  void Deregister();

 private:
  explicit NcclChannel(NcclGroup* group) : group_(group) {}
  absl::Status Open(const Place& place, const ncclUniqueId& id, cudaStream_t stream);
  absl::Status WaitWhile(absl::FunctionRef<absl::StatusOr<bool>()> goes_on);
  absl::Status WaitForComm();
  absl::Status CheckDeadline();
  absl::Status Problems();
  absl::Status GiveUp(absl::Status failure);
  absl::Status Must(cudaError_t error);
  absl::Status Failure(ncclResult_t result) const;
  absl::Status Failure(cudaError_t error) const;
  std::string Where() const;
  void Close();

  NcclGroup* const group_;
  int device_ = 0;
  cudaStream_t own_stream_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ran_ = nullptr;
  ncclComm_t comm_ = nullptr;
  bool captured_ = false;
  std::vector<void*> registered_;
  Operation operation_;
  int64_t begun_ns_ = 0, deadline_ns_ = 0;
};

}  // namespace terrace
