// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/streams.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace terrace::compiler {
namespace {

using kernels::Access;

constexpr int kComputeStream = 0;
constexpr int kInputStream = 1;
constexpr int kFirstGroupStream = 2;

void AddStream(v1::StreamKind kind, const std::string& name, Graph* graph) {
  v1::Stream stream;
  stream.set_kind(kind);
  stream.set_name(name);
  graph->streams.push_back(std::move(stream));
}

int StreamOf(const Node& node) {
  if (const auto* collective = std::get_if<Collective>(&node.what)) {
    return kFirstGroupStream + collective->group;
  }
  return std::holds_alternative<Input>(node.what) ? kInputStream : kComputeStream;
}

// What one node does to one outermost value.
struct Use {
  int node = 0;
  int64_t begin = 0;  // bytes
  int64_t end = 0;
  bool writes = false;
};

bool Conflict(const Use& a, const Use& b) {
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
}

// Walks one sequence in list order.
class Waits {
 public:
  explicit Waits(const Graph& graph) : graph_(graph), last_(graph.streams.size(), kNone) {}

  void Assign(std::vector<Node>* nodes) {
    clocks_.reserve(nodes->size());
    for (int i = 0; i < static_cast<int>(nodes->size()); ++i) {
      Node& node = (*nodes)[i];
      node.stream = StreamOf(node);
      Clock clock =
          last_[node.stream] == kNone ? Clock(last_.size(), kNone) : clocks_[last_[node.stream]];
      node.waits = Reduce(Dependencies(i, node), &clock);
      clock[node.stream] = i;
      last_[node.stream] = i;
      clocks_.push_back(std::move(clock));
    }
  }

 private:
  // For each stream the last of its nodes that is known to have finished.
  using Clock = std::vector<int>;

  // For each other stream the last node that conflicts with `node`; earlier ones of that stream
  // come before it anyway.
  Clock Dependencies(int index, const Node& node) {
    Clock latest(last_.size(), kNone);
    std::vector<std::pair<int, Use>> uses;
    for (int k = 0; k < static_cast<int>(node.operands.size()); ++k) {
      const Access access = AccessOf(node, k);
      if (access == Access::kNone) continue;
      const Slice root = graph_.Root(node.operands[k]);
      const int64_t begin = root.offset * kernels::SizeOf(root.shape.dtype);
      const Use use = {.node = index,
                       .begin = begin,
                       .end = begin + root.shape.SpanBytes(),
                       .writes = access != Access::kRead};
      for (int stream = 0; stream < static_cast<int>(latest.size()); ++stream) {
        if (stream == node.stream) continue;
        for (const Use& other : uses_[{root.value, stream}]) {
          if (Conflict(use, other)) latest[stream] = std::max(latest[stream], other.node);
        }
      }
      uses.emplace_back(root.value, use);
    }
    for (const auto& [value, use] : uses) uses_[{value, node.stream}].push_back(use);
    return latest;
  }

  // Drops what the clock or another dependency implies, and moves the clock on.
  std::vector<int> Reduce(const Clock& latest, Clock* clock) const {
    std::vector<int> waits;
    for (size_t s = 0; s < latest.size(); ++s) {
      if (latest[s] > (*clock)[s]) waits.push_back(latest[s]);
    }
    const auto implied = [&](int wait, size_t stream) {
      return std::any_of(waits.begin(), waits.end(), [&](int other) {
        return other != wait && clocks_[other][stream] >= wait;
      });
    };
    std::vector<int> needed;
    for (size_t s = 0; s < latest.size(); ++s) {
      if (latest[s] > (*clock)[s] && !implied(latest[s], s)) needed.push_back(latest[s]);
    }
    for (int wait : needed) {
      for (size_t s = 0; s < clock->size(); ++s)
        (*clock)[s] = std::max((*clock)[s], clocks_[wait][s]);
    }
    std::sort(needed.begin(), needed.end());
    return needed;
  }

  const Graph& graph_;
  std::vector<int> last_;  // by stream: its latest node
  std::vector<Clock> clocks_;
  std::map<std::pair<int, int>, std::vector<Use>> uses_;  // by value and stream
};

}  // namespace

void AssignStreams(Graph* graph) {
  AddStream(v1::COMPUTE, "compute", graph);
  AddStream(v1::HOST_TO_DEVICE, "inputs", graph);
  for (const v1::Group& group : graph->groups) AddStream(v1::COLLECTIVE, group.name(), graph);
  for (Sequence& sequence : graph->sequences) Waits(*graph).Assign(&sequence.nodes);
}

}  // namespace terrace::compiler
