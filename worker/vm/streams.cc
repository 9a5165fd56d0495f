// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/streams.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "worker/memory/step_scope.h"
#include "worker/vm/handlers.h"

namespace terrace {

Streams::Streams(std::span<const v1::StreamKind> kinds, const Clock* clock, StateFence* fence,
                 std::span<const std::unique_ptr<Communicator>> groups,
                 std::span<FlightCounter> counters, Backend* backend)
    : clock_(clock),
      fence_(fence),
      groups_(groups),
      counters_(counters.first(kinds.size())),
      caller_stream_(std::find(kinds.begin(), kinds.end(), v1::COMPUTE) - kinds.begin()),
      backend_(backend),
      launched_(std::make_unique<std::atomic<int32_t>[]>(kinds.size())),
      threads_(kinds.size()) {
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (i != caller_stream_) threads_[i] = std::thread(&Streams::ThreadMain, this, i);
  }
}

Streams::~Streams() {
  stopping_.store(true);
  calls_.runs.fetch_add(1);
  calls_.runs.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

absl::Status Streams::Run(PreparedSequence* sequence, SequenceIo* io) {
  sequence_ = sequence;
  io_ = io;
  failed_.store(false);
  calls_.turns.store(0, std::memory_order_relaxed);
  for (FlightCounter& counter : counters_) counter.finished.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < counters_.size(); ++i) launched_[i].store(0, std::memory_order_relaxed);
  calls_.runs.fetch_add(1, std::memory_order_release);
  calls_.runs.notify_all();
  Execute(caller_stream_);
  for (size_t i = 0; i < counters_.size(); ++i) {
    // One more than its instructions: the thread has let go of the sequence.
    WaitFor(static_cast<uint32_t>(i), sequence->streams[i].played() + 1);
  }
  if (!failed_.load()) return backend_ == nullptr ? absl::OkStatus() : EndOnDevice();
  absl::MutexLock lock(&mutex_);
  return std::exchange(failure_, absl::OkStatus());
}

void Streams::ThreadMain(size_t stream) {
  // A device that does not let a thread in says so again when that thread asks for something.
  if (backend_ != nullptr) backend_->EnterThread().IgnoreError();
  for (uint32_t seen = 0;;) {
    calls_.runs.wait(seen, std::memory_order_acquire);
    seen = calls_.runs.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    Execute(stream);
  }
}

void Streams::Execute(size_t stream) {
  const StepScope scope;
  if (sequence_->streams[stream].queue != nullptr) return ExecuteOnDevice(stream);
  PreparedStream& prepared = sequence_->streams[stream];
  for (PlayedCursor at = prepared.cursor(); !at.AtEnd(); at.Advance()) {
    if (const absl::Status status = ExecuteOne(&prepared, at); !status.ok()) {
      Fail(InIteration(status, at));
      break;
    }
    if (failed_.load(std::memory_order_relaxed)) break;
    Publish(stream, at.position() + 1);
  }
  Publish(stream, prepared.played() + 1);
}

absl::Status Streams::ExecuteOne(PreparedStream* stream, const PlayedCursor& at) {
  PreparedInstruction& instruction = stream->instructions[at.index()];
  if (at.loop() != nullptr) instruction.MoveTo(at.iteration());
  for (const WaitPoint& point : instruction.waits) {
    if (!WaitFor(point.stream, point.At(at.iteration()))) return absl::OkStatus();
  }
  if (sequence_->launcher != nullptr) RETURN_IF_ERROR(sequence_->launcher->Launch(instruction));
  if (instruction.writes_state && fence_ != nullptr) fence_->WaitUntilUnread();
  const bool in_turn = instruction.turn != kAnyTime;
  if (in_turn && !WaitForTurn(instruction.turn + at.iteration() * instruction.turn_step))
    return absl::OkStatus();
  if (at.recorded()) stream->slices[at.slice()].start_ns = clock_->MonotonicNanos();
  RETURN_IF_ERROR(instruction.run(instruction, io_));
  if (at.recorded()) stream->slices[at.slice()].end_ns = clock_->MonotonicNanos();
  if (in_turn) PassTurns(1);
  return absl::OkStatus();
}

// False when the run has failed.
bool Streams::WaitForTurn(int32_t turn) {
  for (int32_t seen = calls_.turns.load(std::memory_order_acquire); seen < turn;
       seen = calls_.turns.load(std::memory_order_acquire)) {
    calls_.turns.wait(seen, std::memory_order_acquire);
  }
  return !failed_.load(std::memory_order_acquire);
}

void Streams::PassTurns(int32_t count) {
  calls_.turns.fetch_add(count, std::memory_order_release);
  calls_.turns.notify_all();
}

// False when the run has failed: the waited-for result will never be there.
bool Streams::WaitFor(uint32_t stream, int32_t position) {
  std::atomic<int32_t>& finished = counters_[stream].finished;
  for (int32_t seen = finished.load(std::memory_order_acquire); seen < position;
       seen = finished.load(std::memory_order_acquire)) {
    finished.wait(seen, std::memory_order_acquire);
  }
  return !failed_.load(std::memory_order_acquire);
}

void Streams::Publish(size_t stream, int32_t finished) {
  std::atomic<int32_t>& counter = counters_[stream].finished;
  counter.store(finished, std::memory_order_release);
  counter.notify_all();
}

// A stream that waits for a peer would wait for as long as the peer, alive, waits for this rank.
void Streams::Fail(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(status);
  }
  failed_.store(true, std::memory_order_release);
  PassTurns(std::numeric_limits<int32_t>::max() / 2);  // once a run: nobody waits for one any more
  for (const auto& group : groups_) {
    if (group != nullptr) group->Abort();
  }
}

}  // namespace terrace
