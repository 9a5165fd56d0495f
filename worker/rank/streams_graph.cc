// A sequence launched as one graph: the part of Streams in which no stream's thread has a part.
//
// The host does what it does before instructions are launched, the device all of them, the host
// what it does when they have finished. Counters show the start of the sequence until all of it is
// done.
//
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/rank/step_scope.h"
#include "worker/rank/streams.h"

namespace terrace {

absl::Status Streams::RunGraph(PreparedSequence* sequence, SequenceIo* io,
                               const DeviceGraph& graph) {
  for (FlightCounter& counter : counters_) counter.finished.store(0, std::memory_order_relaxed);
  absl::Status status = LaunchGraph(*sequence, io, graph);
  for (size_t i = 0; i < counters_.size(); ++i)
    Publish(i, static_cast<int32_t>(sequence->streams[i].instructions.size()) + 1);
  if (status.ok()) return backend_->CheckRun();
  for (const auto& group : groups_) {  // as a run that fails one by one leaves them
    if (group != nullptr) group->Abort();
  }
  return status;
}

absl::Status Streams::LaunchGraph(const PreparedSequence& sequence, SequenceIo* io,
                                  const DeviceGraph& graph) {
  const StepScope scope;
  const auto call_all = [&](Handler PreparedInstruction::*handler) -> absl::Status {
    for (const PreparedStream& stream : sequence.streams) {
      for (const PreparedInstruction& instruction : stream.instructions) {
        if (instruction.*handler != nullptr)
          RETURN_IF_ERROR((instruction.*handler)(instruction, io));
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(call_all(&PreparedInstruction::before));
  const PreparedStream& compute = sequence.streams[caller_stream_];
  const auto end = static_cast<int32_t>(compute.instructions.size());
  absl::Status status = compute.queue->Begin(*clock_);
  if (status.ok()) status = compute.queue->Launch(graph);
  if (status.ok()) status = compute.queue->Mark(end);
  if (status.ok()) status = compute.queue->Finish(end).status();
  if (!status.ok()) {
    compute.queue->Drain().IgnoreError();  // it says the same
    return absl::Status(status.code(),
                        absl::StrCat(sequence.name, ", launched as one graph: ", status.message(),
                                     "; with TERRACE_CUDA_GRAPHS=0 in the worker's environment the "
                                     "instruction is named"));
  }
  return call_all(&PreparedInstruction::finish);
}

}  // namespace terrace
