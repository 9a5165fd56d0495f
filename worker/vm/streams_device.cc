// Streams whose instructions a device executes: the part of Streams that launches them.
//
// A thread that launches runs ahead of its device. It waits for another queue on the device, once
// that has launched what is waited for, and for a stream of the host on the host. Before it sleeps
// on either it sees all that it has launched to its end and publishes it: somebody may wait for
// that, and what this thread waits for may wait for them.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "worker/vm/handlers.h"
#include "worker/vm/streams.h"

namespace terrace {

void Streams::ExecuteOnDevice(size_t stream) {
  PreparedStream& prepared = sequence_->streams[stream];
  Launch launch{.stream = stream,
                .prepared = prepared,
                .queue = *prepared.queue,
                .launched = prepared.cursor(),
                .finished = prepared.cursor()};
  absl::Status status = LaunchAll(&launch);
  if (!status.ok()) Fail(status);  // before the others go on who wait for what will not be launched
  PublishLaunched(stream, prepared.played() + 1);
  // After a failure too: what was launched ends before its memory is used again. The device waits
  // for nothing but what was launched before, so this ends.
  while (!launch.empty()) {
    if (absl::Status ended = FinishNext(&launch); !ended.ok()) Fail(std::move(ended));
  }
  // What was launched when the run failed has no mark that anybody waits for.
  if (failed_.load(std::memory_order_acquire)) launch.queue.Drain().IgnoreError();
  Publish(stream, prepared.played() + 1);
}

absl::Status Streams::LaunchAll(Launch* launch) {
  if (!launch->launched.AtEnd()) {
    const v1::Instruction& first = *launch->prepared.instructions[0].source;
    RETURN_IF_ERROR(Located(launch->queue.Begin(*clock_), first));
  }
  while (!launch->launched.AtEnd()) {
    RETURN_IF_ERROR(LaunchOne(launch));
    if (failed_.load(std::memory_order_relaxed)) break;
    launch->launched.Advance();
    PublishLaunched(launch->stream, launch->launched.position());
    RETURN_IF_ERROR(NoteFinished(launch));
  }
  return absl::OkStatus();
}

// Without the mark, which comes last, it does not count as launched, and nothing waits for it.
absl::Status Streams::LaunchOne(Launch* launch) {
  RETURN_IF_ERROR(MakeRoom(launch));
  const PlayedCursor& at = launch->launched;
  PreparedInstruction& instruction = launch->prepared.instructions[at.index()];
  RETURN_IF_ERROR(WaitToLaunch(instruction, launch));
  if (failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  if (at.loop() != nullptr) instruction.MoveTo(at.iteration());
  return InIteration(LaunchNow(instruction, launch), at);
}

// Marks are used in turn. And what the host has of an input or an output serves one iteration after
// the other: it is free when the one before has ended.
absl::Status Streams::MakeRoom(Launch* launch) {
  const PlayedCursor& at = launch->launched;
  const PreparedInstruction& instruction = launch->prepared.instructions[at.index()];
  int32_t needed = at.position() - MarksOf(launch->prepared) + 1;
  if (at.iteration() > 0 && (instruction.before != nullptr || instruction.finish != nullptr))
    needed = std::max(needed, at.position() - static_cast<int32_t>(at.loop()->count) + 1);
  while (launch->finished.position() < needed) RETURN_IF_ERROR(FinishNext(launch));
  return absl::OkStatus();
}

// For a stream of the host here, for another queue on the device. What a mark stood for that may
// have been set again since has finished: marks are used in turn (MakeRoom).
absl::Status Streams::WaitToLaunch(const PreparedInstruction& instruction, Launch* launch) {
  const PlayedCursor& at = launch->launched;
  for (const WaitPoint& point : instruction.waits) {
    const int32_t position = point.At(at.iteration());
    const DeviceQueue* const other = sequence_->streams[point.stream].queue;
    std::atomic<int32_t>& finished = counters_[point.stream].finished;
    RETURN_IF_ERROR(WaitWhileFinishing(
        launch, other != nullptr ? launched_[point.stream] : finished, position));
    if (failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    const PreparedStream& source = sequence_->streams[point.stream];
    const int32_t again =
        std::min(launched_[point.stream].load(std::memory_order_acquire), source.played()) -
        MarksOf(source);
    if (other == nullptr || position <= std::max(0, again)) continue;
    RETURN_IF_ERROR(
        InIteration(Located(launch->queue.After(*other, position), *instruction.source), at));
  }
  return absl::OkStatus();
}

absl::Status Streams::LaunchNow(const PreparedInstruction& instruction, Launch* launch) {
  const PlayedCursor& at = launch->launched;
  if (sequence_->launcher != nullptr) RETURN_IF_ERROR(sequence_->launcher->Launch(instruction));
  if (instruction.writes_state && fence_ != nullptr) fence_->WaitUntilUnread();
  if (at.recorded()) launch->prepared.slices[at.slice()].start_ns = clock_->MonotonicNanos();
  if (instruction.before != nullptr) RETURN_IF_ERROR(instruction.before(instruction, io_));
  RETURN_IF_ERROR(instruction.run(instruction, io_));
  return Located(launch->queue.Mark(at.position() + 1), *instruction.source);
}

absl::Status Streams::WaitWhileFinishing(Launch* launch, std::atomic<int32_t>& counter,
                                         int32_t position) {
  for (int32_t seen = counter.load(std::memory_order_acquire); seen < position;
       seen = counter.load(std::memory_order_acquire)) {
    if (!launch->empty()) {
      RETURN_IF_ERROR(FinishNext(launch));
    } else {
      counter.wait(seen, std::memory_order_acquire);
    }
  }
  return absl::OkStatus();
}

// Publishes what has finished by now.
absl::Status Streams::NoteFinished(Launch* launch) {
  while (!launch->empty()) {
    const PlayedCursor& at = launch->finished;
    const absl::StatusOr<bool> finished = launch->queue.IsFinished(at.position() + 1);
    const PreparedInstruction& instruction = launch->prepared.instructions[at.index()];
    RETURN_IF_ERROR(InIteration(Located(finished.status(), *instruction.source), at));
    if (!*finished) break;
    RETURN_IF_ERROR(FinishNext(launch));
  }
  return absl::OkStatus();
}

// An error of the device comes from this instruction or from any that ran beside it. An instruction
// that was launched ahead started when the one before had ended.
absl::Status Streams::FinishNext(Launch* launch) {
  const PlayedCursor at = launch->finished;
  launch->finished.Advance();
  const PreparedInstruction& instruction = launch->prepared.instructions[at.index()];
  const absl::StatusOr<int64_t> end_ns = launch->queue.Finish(at.position() + 1);
  RETURN_IF_ERROR(InIteration(Located(end_ns.status(), *instruction.source), at));
  if (at.recorded()) {
    Slice& slice = launch->prepared.slices[at.slice()];
    slice.start_ns = std::max(slice.start_ns, launch->last_end_ns);
    slice.end_ns = *end_ns;
  }
  launch->last_end_ns = *end_ns;
  if (instruction.finish != nullptr && !failed_.load(std::memory_order_acquire))
    RETURN_IF_ERROR(InIteration(instruction.finish(instruction, io_), at));
  Publish(launch->stream, at.position() + 1);
  return absl::OkStatus();
}

// An instruction that was launched ahead started when all that it waited for had ended.
absl::Status Streams::EndOnDevice() {
  for (PreparedStream& stream : sequence_->streams) {
    if (stream.queue == nullptr) continue;
    for (PlayedCursor at = stream.cursor(); !at.AtEnd(); at.AdvanceRecorded()) {
      Slice& slice = stream.slices[at.slice()];
      for (const WaitPoint& point : stream.instructions[at.index()].waits) {
        const PreparedStream& other = sequence_->streams[point.stream];
        const int64_t before = SliceAt(other.loops, int64_t{point.At(at.iteration())} - 1);
        if (before >= 0) slice.start_ns = std::max(slice.start_ns, other.slices[before].end_ns);
      }
      slice.start_ns = std::min(slice.start_ns, slice.end_ns);
    }
  }
  return backend_->CheckRun();
}

void Streams::PublishLaunched(size_t stream, int32_t launched) {
  launched_[stream].store(launched, std::memory_order_release);
  launched_[stream].notify_all();
}

}  // namespace terrace
