// Writes checkpoints while training goes on, without a copy: a thread of each rank reads its
// persistent buffers during the next step's forward and backward passes, and the fence holds the
// rank's optimizer back until that is done. The threads of all ranks write one checkpoint together;
// all get the same outcome.
//
// Start, Finish and Poll are used on the trainer's thread, at the same steps on all ranks;
// WaitUntilUnread on any.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/v1/job.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/peers.h"
#include "worker/comm/communicator.h"
#include "worker/vm/streams.h"

namespace terrace {

// All ranks of the job, through a group that nothing else uses while a checkpoint is written.
// Borrows it.
class GroupPeers final : public CheckpointPeers {
 public:
  explicit GroupPeers(Communicator* group) : group_(group) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  absl::Status AllGather(const void* in, void* out, int64_t bytes) override {
    return group_->AllGather(in, out, bytes);
  }

 private:
  Communicator* const group_;
};

struct WrittenCheckpoint {
  CheckpointInfo info;
  double seconds = 0;        // of writing
  double stall_seconds = 0;  // that the optimizer waited for it
};

class Checkpointer final : public StateFence {
 public:
  // What the files of a checkpoint name beside the job's spec.
  struct Named {
    SpecialTokens special;
    TokenSums data;
  };
  // Null `peers`: this is the only rank. Borrows all but `named`.
  Checkpointer(const v1::JobSpec& spec, const RankState& state, CheckpointPeers* peers,
               const Clock* clock)
      : Checkpointer(spec, state, peers, clock, Named()) {}
  Checkpointer(const v1::JobSpec& spec, const RankState& state, CheckpointPeers* peers,
               const Clock* clock, Named named)
      : spec_(spec), state_(state), peers_(peers), clock_(clock), named_(std::move(named)) {}
  ~Checkpointer() override;

  // Starts to write the state after `step` steps. REQUIRES: the result of the one before was taken.
  void Start(int64_t step, int64_t tokens, const TrainingState& training = {});
  bool busy() const { return thread_.joinable(); }
  // The result of a write that has ended; nothing while it goes on or when there is none.
  std::optional<absl::StatusOr<WrittenCheckpoint>> Poll();
  // The same, after waiting for it.
  std::optional<absl::StatusOr<WrittenCheckpoint>> Finish();

  // Blocks while this rank's state is being read. Allocates nothing.
  void WaitUntilUnread() override;
  bool IsUnread() const override { return !reading_.load(std::memory_order_acquire); }
  int64_t reads() const override { return reads_; }

 private:
  void Write(int64_t step, int64_t tokens, const TrainingState& training);
  void OpenFence();

  const v1::JobSpec& spec_;
  const RankState state_;
  CheckpointPeers* const peers_;
  const Clock* const clock_;
  const Named named_;
  std::atomic<bool> reading_{false};
  std::atomic<bool> ended_{false};
  int64_t reads_ = 0;
  std::atomic<int64_t> stall_ns_{0};
  std::thread thread_;
  absl::StatusOr<WrittenCheckpoint> result_;  // written by thread_, read after it has ended
};

}  // namespace terrace
