// Writes checkpoints while training goes on, without a copy: a thread reads the persistent buffers
// during the next step's forward and backward passes, and the fence holds the optimizer back until
// it is done.
//
// Start, Finish and Poll are used on the trainer's thread; WaitUntilUnread on any.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/rank/streams.h"

namespace terrace {

struct WrittenCheckpoint {
  CheckpointInfo info;
  double seconds = 0;        // of writing
  double stall_seconds = 0;  // that the optimizer waited for it
};

class Checkpointer final : public StateFence {
 public:
  // Borrows all.
  Checkpointer(const v1::JobSpec& spec, const v1::Program& program,
               std::span<std::byte* const> arenas, const Clock* clock)
      : spec_(spec), program_(program), arenas_(arenas), clock_(clock) {}
  ~Checkpointer() override;

  // Starts to write the state after `step` steps. REQUIRES: the result of the one before was taken.
  void Start(int64_t step, int64_t tokens);
  bool busy() const { return thread_.joinable(); }
  // The result of a write that has ended; nothing while it goes on or when there is none.
  std::optional<absl::StatusOr<WrittenCheckpoint>> Poll();
  // The same, after waiting for it.
  std::optional<absl::StatusOr<WrittenCheckpoint>> Finish();

  // Blocks while the state is being read. Allocates nothing.
  void WaitUntilUnread() override;

 private:
  void Write(int64_t step, int64_t tokens);

  const v1::JobSpec& spec_;
  const v1::Program& program_;
  const std::span<std::byte* const> arenas_;
  const Clock* const clock_;
  std::atomic<bool> reading_{false};
  std::atomic<int64_t> stall_ns_{0};
  std::thread thread_;
  absl::StatusOr<WrittenCheckpoint> result_;  // written by thread_, read after it has ended
};

}  // namespace terrace
