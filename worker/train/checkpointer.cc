// SPDX-License-Identifier: Apache-2.0
#include "worker/train/checkpointer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reworded.h"
#include "worker/reporting/failure.h"

namespace terrace {

Checkpointer::~Checkpointer() {
  if (thread_.joinable()) thread_.join();
}

void Checkpointer::Start(int64_t step, int64_t tokens, const TrainingState& training) {
  ++reads_;
  stall_ns_.store(0);
  ended_.store(false);
  reading_.store(true, std::memory_order_release);
  thread_ = std::thread(&Checkpointer::Write, this, step, tokens, training);
}

void Checkpointer::Write(int64_t step, int64_t tokens, const TrainingState& training) {
  const int64_t start_ns = clock_->MonotonicNanos();
  const CheckpointHeader header{.step = step,
                                .tokens = tokens,
                                .training = training,
                                .spec = &spec_,
                                .special = named_.special,
                                .data = named_.data};
  auto info =
      WriteCheckpoint(spec_.checkpoint().directory(), header, state_,
                      {.keep = spec_.checkpoint().keep(),
                       .spared = spec_.checkpoint().keep_best() ? training.validation.best_step
                                                                : WriteOptions().spared,
                       .unix_ms = clock_->UnixMillis(),
                       .peers = peers_,
                       .on_read = [this] { OpenFence(); }});
  if (info.ok()) {
    result_ = WrittenCheckpoint{.info = *std::move(info),
                                .seconds = (clock_->MonotonicNanos() - start_ns) * 1e-9};
  } else {
    const absl::Status failure = Reworded(
        info.status(),
        absl::StrCat("cannot write the checkpoint of step ", step, ": ", info.status().message()));
    const v1::Reason reason =
        absl::IsOutOfRange(failure) ? v1::REASON_NON_FINITE_LOSS : v1::REASON_CHECKPOINT_ERROR;
    // A peer that is lost says nothing about the folder.
    result_ = absl::IsUnavailable(failure) ? failure : WithReason(failure, reason);
  }
  OpenFence();
  ended_.store(true, std::memory_order_release);
}

void Checkpointer::OpenFence() {
  reading_.store(false, std::memory_order_release);
  reading_.notify_all();
}

std::optional<absl::StatusOr<WrittenCheckpoint>> Checkpointer::Poll() {
  if (!thread_.joinable() || !ended_.load(std::memory_order_acquire)) return std::nullopt;
  return Finish();
}

std::optional<absl::StatusOr<WrittenCheckpoint>> Checkpointer::Finish() {
  if (!thread_.joinable()) return std::nullopt;
  thread_.join();
  if (result_.ok()) result_->stall_seconds = stall_ns_.load() * 1e-9;
  return std::move(result_);
}

void Checkpointer::WaitUntilUnread() {
  if (!reading_.load(std::memory_order_acquire)) return;
  const int64_t start_ns = clock_->MonotonicNanos();
  reading_.wait(true, std::memory_order_acquire);
  stall_ns_.fetch_add(clock_->MonotonicNanos() - start_ns);
}

}  // namespace terrace
