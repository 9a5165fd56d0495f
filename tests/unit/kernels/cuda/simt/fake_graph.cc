// Captures and graphs of the fake device.
//
// A node comes after what its stream and the events that the stream waited for say, and after
// nothing else. A launch is one entry of its stream; inside it nodes are executed in whatever order
// the edges leave open (fake_device.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tests/unit/kernels/cuda/simt/fake_state.h"

namespace terrace::simt {
namespace {

using Nodes = std::vector<CUgraph_st::Node>;

// Which of the ready nodes comes next: an index.
size_t Choose(const std::vector<size_t>& ready) {
  Fake& fake = TheFake();
  switch (fake.options.order) {
    case DeviceOptions::Order::kRandom:
      return fake.random() % ready.size();
    case DeviceOptions::Order::kLazy:
      return std::max_element(ready.begin(), ready.end()) - ready.begin();
    case DeviceOptions::Order::kEager:
      break;
  }
  return std::min_element(ready.begin(), ready.end()) - ready.begin();
}

void Execute(const Nodes& nodes) {
  std::vector<size_t> open(nodes.size()), ready;
  std::vector<std::vector<size_t>> next(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    open[i] = nodes[i].after.size();
    for (const size_t before : nodes[i].after) next[before].push_back(i);
    if (open[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    const size_t chosen = Choose(ready), node = ready[chosen];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(chosen));
    Work(nodes[node].work);
    for (const size_t later : next[node]) {
      if (--open[later] == 0) ready.push_back(later);
    }
  }
}

// All nodes that come before one of these, and they.
std::set<size_t> Before(const Nodes& nodes, std::vector<size_t> from) {
  std::set<size_t> found;
  while (!from.empty()) {
    const size_t node = from.back();
    from.pop_back();
    if (!found.insert(node).second) continue;
    from.insert(from.end(), nodes[node].after.begin(), nodes[node].after.end());
  }
  return found;
}

bool AllJoined(const Capture& capture) {
  const std::set<size_t> joined = Before(capture.graph.nodes, capture.origin->after);
  return std::all_of(capture.streams.begin(), capture.streams.end(),
                     [&](const CUstream_st* stream) {
                       return std::all_of(stream->after.begin(), stream->after.end(),
                                          [&](size_t node) { return joined.contains(node); });
                     });
}

void Join(CUstream_st* stream, Capture* capture) {
  stream->capture = capture;
  stream->after.clear();
  capture->streams.insert(stream);
}

}  // namespace

bool BreaksCapture() {
  bool breaks = false;
  for (auto& [number, capture] : TheFake().captures) {
    if (capture.thread != std::this_thread::get_id()) continue;
    breaks = capture.broken = true;
  }
  return breaks;
}

void CaptureWork(CUstream_st* stream, std::function<void()> work) {
  Nodes& nodes = stream->capture->graph.nodes;
  nodes.push_back({.work = std::move(work), .after = stream->after});
  stream->after = {nodes.size() - 1};
}

cudaError_t CaptureWait(CUstream_st* stream, const CUevent_st& event) {
  const auto capture = TheFake().captures.find(event.captured);
  if (capture == TheFake().captures.end()) {  // recorded outside, or in a capture that has ended
    if (stream->capture == nullptr) return cudaErrorCapturedEvent;
    stream->capture->broken = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (stream->capture == nullptr) Join(stream, &capture->second);
  if (stream->capture != &capture->second) return cudaErrorStreamCaptureIsolation;
  for (const size_t node : event.captured_after) {
    if (std::find(stream->after.begin(), stream->after.end(), node) == stream->after.end())
      stream->after.push_back(node);
  }
  return cudaSuccess;
}

}  // namespace terrace::simt

using namespace terrace::simt;  // NOLINT: the names below are CUDA's own

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  const int64_t number = ++fake.next_capture;
  Capture& capture = fake.captures[number];
  capture.number = number;
  capture.origin = stream;
  capture.thread = std::this_thread::get_id();
  Join(stream, &capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  *graph = nullptr;
  if (stream->capture == nullptr) return cudaErrorIllegalState;
  Capture& capture = *stream->capture;
  if (capture.origin != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture.thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  const bool joined = AllJoined(capture), broken = capture.broken;
  if (joined && !broken) *graph = new CUgraph_st(std::move(capture.graph));
  for (CUstream_st* member : capture.streams) member->capture = nullptr;
  fake.captures.erase(capture.number);
  if (broken) return cudaErrorStreamCaptureInvalidated;
  return joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const DeviceOptions& options = fake.options;
  if (fake.used_bytes + options.graph_bytes > options.memory_bytes - options.context_bytes)
    return cudaErrorMemoryAllocation;
  *executable = new CUgraphExec_st{.nodes = graph->nodes, .bytes = options.graph_bytes};
  fake.used_bytes += options.graph_bytes;
  ++fake.counts.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const std::lock_guard lock(TheFake().mutex);
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  ++TheFake().counts.graph_launches;
  return Add(stream, {.work = [executable] { Execute(executable->nodes); }});
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::lock_guard lock(TheFake().mutex);
  TheFake().used_bytes -= executable->bytes;
  --TheFake().counts.graphs;
  delete executable;
  return cudaSuccess;
}
