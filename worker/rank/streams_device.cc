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
#include "worker/rank/handlers.h"
#include "worker/rank/streams.h"

namespace terrace {

void Streams::ExecuteOnDevice(size_t stream) {
  PreparedStream& prepared = sequence_->streams[stream];
  const auto count = static_cast<int32_t>(prepared.instructions.size());
  Launch launch{.stream = stream, .prepared = prepared, .queue = *prepared.queue};
  absl::Status status = LaunchAll(&launch);
  if (!status.ok()) Fail(status);  // before the others go on who wait for what will not be launched
  PublishLaunched(stream, count + 1);
  // After a failure too: what was launched ends before its memory is used again. The device waits
  // for nothing but what was launched before, so this ends.
  while (launch.finished < launch.launched) {
    if (absl::Status ended = FinishNext(&launch); !ended.ok()) Fail(std::move(ended));
  }
  // What was launched when the run failed has no mark that anybody waits for.
  if (failed_.load(std::memory_order_acquire)) launch.queue.Drain().IgnoreError();
  Publish(stream, count + 1);
}

absl::Status Streams::LaunchAll(Launch* launch) {
  const auto count = static_cast<int32_t>(launch->prepared.instructions.size());
  if (count > 0) {
    const v1::Instruction& first = *launch->prepared.instructions[0].source;
    RETURN_IF_ERROR(Located(launch->queue.Begin(*clock_), first));
  }
  while (launch->launched < count) {
    RETURN_IF_ERROR(LaunchOne(launch));
    if (failed_.load(std::memory_order_relaxed)) break;
    PublishLaunched(launch->stream, ++launch->launched);
    RETURN_IF_ERROR(NoteFinished(launch));
  }
  return absl::OkStatus();
}

// Sets its mark last; without the mark it does not count as launched, and nothing waits for it.
absl::Status Streams::LaunchOne(Launch* launch) {
  const PreparedInstruction& instruction = launch->prepared.instructions[launch->launched];
  for (const WaitPoint& point : instruction.waits) {
    const DeviceQueue* const other = sequence_->streams[point.stream].queue;
    std::atomic<int32_t>& counter =
        other != nullptr ? launched_[point.stream] : counters_[point.stream].finished;
    RETURN_IF_ERROR(WaitWhileFinishing(launch, counter, point.position));
    if (failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    if (other != nullptr)
      RETURN_IF_ERROR(Located(launch->queue.After(*other, point.position), *instruction.source));
  }
  if (sequence_->launcher != nullptr) RETURN_IF_ERROR(sequence_->launcher->Launch(instruction));
  if (instruction.writes_state && fence_ != nullptr) fence_->WaitUntilUnread();
  launch->prepared.slices[launch->launched].start_ns = clock_->MonotonicNanos();
  if (instruction.before != nullptr) RETURN_IF_ERROR(instruction.before(instruction, io_));
  RETURN_IF_ERROR(instruction.run(instruction, io_));
  return Located(launch->queue.Mark(launch->launched + 1), *instruction.source);
}

absl::Status Streams::WaitWhileFinishing(Launch* launch, std::atomic<int32_t>& counter,
                                         int32_t position) {
  for (int32_t seen = counter.load(std::memory_order_acquire); seen < position;
       seen = counter.load(std::memory_order_acquire)) {
    if (launch->finished < launch->launched) {
      RETURN_IF_ERROR(FinishNext(launch));
    } else {
      counter.wait(seen, std::memory_order_acquire);
    }
  }
  return absl::OkStatus();
}

// Publishes what has finished by now.
absl::Status Streams::NoteFinished(Launch* launch) {
  while (launch->finished < launch->launched) {
    const absl::StatusOr<bool> finished = launch->queue.IsFinished(launch->finished + 1);
    const PreparedInstruction& instruction = launch->prepared.instructions[launch->finished];
    RETURN_IF_ERROR(Located(finished.status(), *instruction.source));
    if (!*finished) break;
    RETURN_IF_ERROR(FinishNext(launch));
  }
  return absl::OkStatus();
}

// An error of the device comes from this instruction or from any that ran beside it.
absl::Status Streams::FinishNext(Launch* launch) {
  const int32_t index = launch->finished++;
  const PreparedInstruction& instruction = launch->prepared.instructions[index];
  const absl::StatusOr<int64_t> end_ns = launch->queue.Finish(index + 1);
  RETURN_IF_ERROR(Located(end_ns.status(), *instruction.source));
  launch->prepared.slices[index].end_ns = *end_ns;
  if (instruction.finish != nullptr && !failed_.load(std::memory_order_acquire))
    RETURN_IF_ERROR(instruction.finish(instruction, io_));
  Publish(launch->stream, index + 1);
  return absl::OkStatus();
}

// An instruction that was launched ahead started when all before it had ended.
absl::Status Streams::EndOnDevice() {
  for (PreparedStream& stream : sequence_->streams) {
    if (stream.queue == nullptr) continue;
    for (size_t i = 0; i < stream.instructions.size(); ++i) {
      Slice& slice = stream.slices[i];
      if (i > 0) slice.start_ns = std::max(slice.start_ns, stream.slices[i - 1].end_ns);
      for (const WaitPoint& point : stream.instructions[i].waits) {
        const Slice& before = sequence_->streams[point.stream].slices[point.position - 1];
        slice.start_ns = std::max(slice.start_ns, before.end_ns);
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
