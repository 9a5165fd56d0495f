// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/step_graph.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reworded.h"
#include "base/status_macros.h"
#include "worker/device/graphable.h"
#include "worker/vm/handlers.h"

namespace terrace {
namespace {

struct Place {
  size_t stream = 0;
  int32_t index = 0;
};

// As the list has them: what an instruction waits for comes before it.
std::vector<Place> InListOrder(const PreparedSequence& sequence) {
  std::vector<Place> places;
  for (size_t s = 0; s < sequence.streams.size(); ++s) {
    for (size_t i = 0; i < sequence.streams[s].instructions.size(); ++i)
      places.push_back({s, static_cast<int32_t>(i)});
  }
  const auto id = [&](const Place& place) {
    return sequence.streams[place.stream].instructions[place.index].source->id();
  };
  std::sort(places.begin(), places.end(),
            [&](const Place& a, const Place& b) { return id(a) < id(b); });
  return places;
}

// Where a graph holds the stream's instructions.
DeviceQueue* QueueOf(const PreparedStream& stream) {
  return stream.queue != nullptr ? stream.queue : stream.captured;
}

absl::Status CaptureOne(const PreparedSequence& sequence, const Place& place) {
  const PreparedStream& stream = sequence.streams[place.stream];
  const PreparedInstruction& instruction = stream.instructions[place.index];
  DeviceQueue* const queue = QueueOf(stream);
  for (const WaitPoint& point : instruction.waits) {
    const DeviceQueue& other = *QueueOf(sequence.streams[point.stream]);
    RETURN_IF_ERROR(Located(queue->After(other, point.position), *instruction.source));
  }
  RETURN_IF_ERROR(instruction.run(instruction, nullptr));
  return Located(queue->Mark(place.index + 1), *instruction.source);
}

DeviceQueue* ComputeQueue(const PreparedSequence& sequence) {
  const auto compute =
      std::find_if(sequence.streams.begin(), sequence.streams.end(),
                   [](const PreparedStream& stream) { return stream.kind == v1::COMPUTE; });
  return compute->queue;
}

// All queues begin when the one of computation does, and it ends when they all have.
absl::Status CaptureAll(const PreparedSequence& sequence, DeviceQueue* compute) {
  RETURN_IF_ERROR(compute->Mark(0));
  for (const PreparedStream& stream : sequence.streams) {
    if (stream.queue == compute || stream.instructions.empty()) continue;
    RETURN_IF_ERROR(QueueOf(stream)->After(*compute, 0));
  }
  for (const Place& place : InListOrder(sequence)) RETURN_IF_ERROR(CaptureOne(sequence, place));
  for (const PreparedStream& stream : sequence.streams) {
    if (stream.queue == compute || stream.instructions.empty()) continue;
    RETURN_IF_ERROR(
        compute->After(*QueueOf(stream), static_cast<int32_t>(stream.instructions.size())));
  }
  return absl::OkStatus();
}

size_t CountInstructions(const PreparedSequence& sequence) {
  size_t count = 0;
  for (const PreparedStream& stream : sequence.streams) count += stream.instructions.size();
  return count;
}

std::set<Communicator*> GroupsOf(const PreparedSequence& sequence) {
  std::set<Communicator*> groups;
  for (const PreparedStream& stream : sequence.streams) {
    for (const PreparedInstruction& instruction : stream.instructions)
      if (instruction.group != nullptr) groups.insert(instruction.group);
  }
  return groups;
}

// What broke a group is the error, whatever else it has led to.
absl::Status EndCaptures(std::span<StepGraph::Group> begun) {
  absl::Status broken;
  for (StepGraph::Group& one : begun) {
    const auto sent = one.group->EndCapture();
    broken.Update(sent.status());
    one.sent_bytes = sent.value_or(0);
  }
  return broken;
}

}  // namespace

absl::StatusOr<StepGraph> CaptureGraph(const PreparedSequence& sequence, absl::Status* refused) {
  DeviceQueue* const compute = ComputeQueue(sequence);
  StepGraph made;
  std::set<Communicator*> groups = GroupsOf(sequence);
  for (Communicator* group : groups) made.groups.push_back({group->graph_collectives()});
  absl::Status captured;
  size_t begun = 0;
  while (captured.ok() && begun < made.groups.size())
    captured = made.groups[begun++].group->BeginCapture();
  if (captured.ok()) captured = compute->BeginCapture();
  if (captured.ok()) {
    captured = CaptureAll(sequence, compute);
    auto graph = compute->EndCapture();
    if (captured.ok())
      captured = graph.status();  // else the cause; ending says only that there was
    if (captured.ok()) made.graph = *std::move(graph);
  }
  RETURN_IF_ERROR(EndCaptures(std::span(made.groups).first(begun)));
  *refused = captured;
  return made;
}

absl::Status StepGraphs::Capture(const v1::Program& program,
                                 std::span<const PreparedSequence> sequences,
                                 const std::vector<bool>& captured, Backend* backend) {
  graphs_.resize(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const PreparedSequence& sequence = sequences[i];
    const std::string why_not =
        WhyNotGraphable(program, program.sequences(static_cast<int>(i)), captured);
    if (!why_not.empty()) {
      log::Info(sequence.name,
                " is launched instruction by instruction, not as a graph: ", why_not);
      continue;
    }
    const int64_t before = backend->HeldBytes();
    absl::Status refused;
    auto graph = CaptureGraph(sequence, &refused);
    if (!graph.ok()) {
      return Reworded(
          graph.status(),
          absl::StrCat(sequence.name,
                       " broke a group when it was made a graph: ", graph.status().message(),
                       "; with TERRACE_CUDA_GRAPHS=0 in the worker's environment none is made"));
    }
    if (!refused.ok()) {
      log::Warn(sequence.name,
                " is launched slower than it could be, not as a graph: ", refused.message());
      continue;
    }
    log::Info(sequence.name, " runs as one graph of ", CountInstructions(sequence), " instructions",
              graph->groups.empty() ? "" : ", collectives of NCCL among them");
    const int64_t bytes = std::max<int64_t>(0, backend->HeldBytes() - before);
    graphs_[i] = {.graph = *std::move(graph), .bytes = bytes, .runs = -1};
  }
  return absl::OkStatus();
}

int64_t StepGraphs::bytes() const {
  int64_t bytes = 0;
  for (const SequenceGraph& entry : graphs_) bytes += entry.bytes;
  return bytes;
}

bool StepGraphs::Clear() {
  bool any = false;
  for (size_t i = 0; i < graphs_.size(); ++i) any = any || Has(i);
  graphs_.clear();
  return any;
}

bool StepGraphs::ClearCollectives(size_t sequence) {
  if (!Has(sequence) || graphs_[sequence].graph.groups.empty()) return false;
  graphs_[sequence].graph = StepGraph();
  graphs_[sequence].bytes = 0;
  return true;
}

const StepGraph* StepGraphs::Next(size_t sequence, bool one_by_one) {
  if (!Has(sequence)) return nullptr;
  SequenceGraph& entry = graphs_[sequence];
  if (one_by_one || entry.runs < 0 || entry.runs + 1 >= kRunsAGraph) {
    entry.runs = 0;
    return nullptr;
  }
  ++entry.runs;
  return &entry.graph;
}

}  // namespace terrace
