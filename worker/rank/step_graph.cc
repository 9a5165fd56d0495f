// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/step_graph.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "worker/rank/graphable.h"
#include "worker/rank/handlers.h"

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

absl::Status CaptureOne(const PreparedSequence& sequence, const Place& place) {
  const PreparedStream& stream = sequence.streams[place.stream];
  const PreparedInstruction& instruction = stream.instructions[place.index];
  for (const WaitPoint& point : instruction.waits) {
    const DeviceQueue& other = *sequence.streams[point.stream].queue;
    RETURN_IF_ERROR(Located(stream.queue->After(other, point.position), *instruction.source));
  }
  RETURN_IF_ERROR(instruction.run(instruction, nullptr));
  return Located(stream.queue->Mark(place.index + 1), *instruction.source);
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
    RETURN_IF_ERROR(stream.queue->After(*compute, 0));
  }
  for (const Place& place : InListOrder(sequence)) RETURN_IF_ERROR(CaptureOne(sequence, place));
  for (const PreparedStream& stream : sequence.streams) {
    if (stream.queue == compute || stream.instructions.empty()) continue;
    RETURN_IF_ERROR(
        compute->After(*stream.queue, static_cast<int32_t>(stream.instructions.size())));
  }
  return absl::OkStatus();
}

size_t CountInstructions(const PreparedSequence& sequence) {
  size_t count = 0;
  for (const PreparedStream& stream : sequence.streams) count += stream.instructions.size();
  return count;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceGraph>> CaptureGraph(const PreparedSequence& sequence) {
  DeviceQueue* const compute = ComputeQueue(sequence);
  RETURN_IF_ERROR(compute->BeginCapture());
  const absl::Status captured = CaptureAll(sequence, compute);
  auto graph = compute->EndCapture();
  if (!captured.ok()) return captured;  // the cause; ending says only that there was one
  return graph;
}

void StepGraphs::Capture(const v1::Program& program, std::span<const PreparedSequence> sequences) {
  graphs_.resize(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const PreparedSequence& sequence = sequences[i];
    const std::string why_not = WhyNotGraphable(program, program.sequences(static_cast<int>(i)));
    if (!why_not.empty()) {
      log::Info(sequence.name,
                " is launched instruction by instruction, not as a graph: ", why_not);
      continue;
    }
    auto graph = CaptureGraph(sequence);
    if (!graph.ok()) {
      log::Warn(sequence.name,
                " is launched slower than it could be, not as a graph: ", graph.status().message());
      continue;
    }
    log::Info(sequence.name, " runs as one graph of ", CountInstructions(sequence),
              " instructions");
    graphs_[i] = {.graph = *std::move(graph), .runs = -1};
  }
}

bool StepGraphs::Clear() {
  const bool any = std::any_of(graphs_.begin(), graphs_.end(),
                               [](const SequenceGraph& entry) { return entry.graph != nullptr; });
  graphs_.clear();
  return any;
}

const DeviceGraph* StepGraphs::Next(size_t sequence, bool one_by_one) {
  if (!Has(sequence)) return nullptr;
  SequenceGraph& entry = graphs_[sequence];
  if (one_by_one || entry.runs < 0 || entry.runs + 1 >= kRunsAGraph) {
    entry.runs = 0;
    return nullptr;
  }
  ++entry.runs;
  return entry.graph.get();
}

}  // namespace terrace
