// A sequence launched as one graph: the part of Streams in which no stream's thread has a part.
//
// The host does what it does before instructions are launched, the device all of them, the host
// what it does when they have finished. Counters show the start of the sequence until all of it is
// done.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/memory/step_scope.h"
#include "worker/vm/sequence_times.h"
#include "worker/vm/step_graph.h"
#include "worker/vm/streams.h"

namespace terrace {
namespace {

constexpr std::chrono::microseconds kGraphPoll{50};  // a step takes far longer

}  // namespace

absl::Status Streams::RunGraph(PreparedSequence* sequence, SequenceIo* io, const StepGraph& graph) {
  for (FlightCounter& counter : counters_) counter.finished.store(0, std::memory_order_relaxed);
  absl::Status status = LaunchGraph(*sequence, io, graph);
  for (size_t i = 0; i < counters_.size(); ++i)
    Publish(i, static_cast<int32_t>(sequence->streams[i].instructions.size()) + 1);
  if (status.ok()) return backend_->CheckRun();
  AbortGroups();  // as a run that fails one by one leaves them
  return status;
}

void Streams::AbortGroups() {
  for (const auto& group : groups_) {
    if (group != nullptr) group->Abort();
  }
}

absl::Status Streams::LaunchGraph(const PreparedSequence& sequence, SequenceIo* io,
                                  const StepGraph& graph) {
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
  const absl::Status status = ExecuteGraph(sequence, graph);
  if (!status.ok()) {
    // Kernels that wait for a lost member end only now; then the device comes to its end too.
    AbortGroups();
    for (const StepGraph::Group& one : graph.groups) one.group->CheckRun().IgnoreError();
    sequence.streams[caller_stream_].queue->Drain().IgnoreError();  // it says the same
    return absl::Status(status.code(),
                        absl::StrCat(sequence.name, ", launched as one graph: ", status.message(),
                                     "; with TERRACE_CUDA_GRAPHS=0 in the worker's environment the "
                                     "instruction is named"));
  }
  return call_all(&PreparedInstruction::finish);
}

absl::Status Streams::ExecuteGraph(const PreparedSequence& sequence, const StepGraph& graph) {
  const PreparedStream& compute = sequence.streams[caller_stream_];
  DeviceQueue* const queue = compute.queue;
  const auto end = static_cast<int32_t>(compute.instructions.size());
  const auto one_by_one_ns = static_cast<int64_t>(Seconds(sequence) * 1e9);
  for (const StepGraph::Group& one : graph.groups)
    RETURN_IF_ERROR(one.group->BeginRun(one_by_one_ns));
  RETURN_IF_ERROR(queue->Begin(*clock_));
  RETURN_IF_ERROR(queue->Launch(*graph.graph));
  RETURN_IF_ERROR(queue->Mark(end));
  // Nobody else would see a lost member: the device waits for it for ever.
  while (!graph.groups.empty()) {
    ASSIGN_OR_RETURN(const bool finished, queue->IsFinished(end));
    if (finished) break;
    const LibraryScope library;
    for (const StepGraph::Group& one : graph.groups) RETURN_IF_ERROR(one.group->CheckRun());
    std::this_thread::sleep_for(kGraphPoll);
  }
  RETURN_IF_ERROR(queue->Finish(end).status());
  for (const StepGraph::Group& one : graph.groups) one.group->EndRun(one.sent_bytes);
  return absl::OkStatus();
}

}  // namespace terrace
