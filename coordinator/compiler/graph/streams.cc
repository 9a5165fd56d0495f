// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph/streams.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

using kernels::Access;

constexpr int kComputeStream = 0;
constexpr int kInputStream = 1;

// How many values are on their way from the device at a time.
constexpr int kLeaving = 2;

void AddStream(v1::StreamKind kind, const std::string& name, Graph* graph) {
  v1::Stream stream;
  stream.set_kind(kind);
  stream.set_name(name);
  graph->streams.push_back(std::move(stream));
}

// Streams are made as they are first needed, after those of the groups.
class StreamTable {
 public:
  explicit StreamTable(Graph* graph) : graph_(*graph) {
    AddStream(v1::COMPUTE, "compute", graph);
    AddStream(v1::HOST_TO_DEVICE, "inputs", graph);
  }

  int Of(const Node& node) {
    if (const auto* collective = std::get_if<Collective>(&node.what)) {
      return Find({collective->group, kNone, kNone}, v1::COLLECTIVE,
                  graph_.groups[collective->group].name());
    }
    if (const auto* transfer = std::get_if<Transfer>(&node.what)) {
      const bool send = transfer->kind == v1::SEND;
      return Find({transfer->group, transfer->kind, transfer->peer_stage}, v1::TRANSFER,
                  absl::StrCat(graph_.groups[transfer->group].name(), send ? ".to" : ".from",
                               transfer->peer_stage));
    }
    if (const Copy* copy = node.copy()) return OfCopies(copy->kind);
    if (OnHost(node)) return OfTier(v1::HOST_COMPUTE, "host_compute");
    return std::holds_alternative<Input>(node.what) ? kInputStream : kComputeStream;
  }

 private:
  bool OnHost(const Node& node) const {
    if (node.compute() == nullptr) return false;
    const auto present = std::find_if(node.operands.begin(), node.operands.end(),
                                      [](const Slice& slice) { return !slice.absent(); });
    return present != node.operands.end() && graph_.TierOf(*present) == v1::HOST;
  }

  int OfCopies(v1::CopyKind kind) {
    switch (kind) {
      case v1::TO_HOST:
        return OfTier(v1::DEVICE_TO_HOST, "to_host");
      case v1::NVME_LOAD:
        return OfTier(v1::NVME_READ, "nvme_read");
      case v1::NVME_STORE:
        return OfTier(v1::NVME_WRITE, "nvme_write");
      default:
        return OfTier(v1::HOST_TO_DEVICE, "to_device");
    }
  }

  int OfTier(v1::StreamKind kind, const std::string& name) {
    return Find({kNone, kind, kNone}, kind, name);
  }

  int Find(const std::tuple<int, int, int>& key, v1::StreamKind kind, const std::string& name) {
    const auto [it, is_new] = streams_.try_emplace(key, static_cast<int>(graph_.streams.size()));
    if (is_new) AddStream(kind, name, &graph_);
    return it->second;
  }

  Graph& graph_;
  std::map<std::tuple<int, int, int>, int> streams_;  // by group, kind, peer
};

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

// How many layers later the memory of a value is reclaimed from a collective: by then the link has
// had time.
constexpr int kRetireMarks = 2;

// Walks one sequence in list order.
class Waits {
 public:
  explicit Waits(const Graph& graph)
      : graph_(graph), last_(graph.streams.size(), kNone), uses_(graph.values.size()) {}

  // REQUIRES: the nodes have their streams.
  void Assign(std::vector<Node>* nodes) {
    nodes_ = nodes;
    FindRetired(*nodes);
    clocks_.reserve(nodes->size());
    for (int i = 0; i < static_cast<int>(nodes->size()); ++i) {
      Node& node = (*nodes)[i];
      Clock clock =
          last_[node.stream] == kNone ? Clock(last_.size(), kNone) : clocks_[last_[node.stream]];
      node.waits = Reduce(Dependencies(i, node, clock), &clock);
      clock[node.stream] = i;
      last_[node.stream] = i;
      clocks_.push_back(std::move(clock));
    }
  }

 private:
  // For each stream the last of its nodes that is known to have finished.
  using Clock = std::vector<int>;
  struct UsesOfStream {
    int stream = 0;
    std::vector<Use> uses;  // in the order of the nodes
  };

  // What a buffer of a ring held before orders its next use by itself (staging.h).
  static bool Reclaimed(const Value& value) {
    return value.lifetime == v1::STEP && value.ring == kNone;
  }

  // A buffer of a ring is new once: nothing that it held orders its first use.
  bool TakesNewMemory(const Node& node) const {
    const bool arrives =
        Communicates(node) || node.copy() != nullptr || std::holds_alternative<Input>(node.what);
    if (!arrives) return false;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (AccessOf(node, static_cast<int>(k)) != Access::kWrite) continue;
      const int root = graph_.Root(node.operands[k]).value;
      const bool first_of_ring = graph_.values[root].ring != kNone && uses_[root].empty();
      if (first_of_ring || Reclaimed(graph_.values[root])) return true;
    }
    return false;
  }

  // For each node that has to wait for one: the communication after which nothing uses some value.
  void FindRetired(const std::vector<Node>& nodes) {
    std::vector<int> last_use(graph_.values.size(), kNone);  // by outermost STEP value
    std::vector<int> first_use = last_use;
    for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
      for (const Slice& operand : nodes[i].operands) {
        if (operand.absent()) continue;
        const int root = graph_.Root(operand).value;
        if (!Reclaimed(graph_.values[root])) continue;
        last_use[root] = i;
        if (first_use[root] == kNone) first_use[root] = i;
      }
    }
    std::vector<int> starts;  // of what leaves the device
    for (size_t value = 0; value < last_use.size(); ++value) {
      const int i = last_use[value];
      if (i != kNone && LeavesDevice(nodes[i])) starts.push_back(first_use[value]);
    }
    std::sort(starts.begin(), starts.end());
    std::vector<int> computed;  // of these, what computations begin
    for (const int start : starts) {
      if (nodes[start].stream == kComputeStream) computed.push_back(start);
    }
    for (size_t value = 0; value < last_use.size(); ++value) {
      const int i = last_use[value];
      if (i == kNone || (!Communicates(nodes[i]) && nodes[i].copy() == nullptr)) continue;
      const int later = !LeavesDevice(nodes[i]) ? RetiredBy(nodes, i)
                        : EndsWithRun(static_cast<int>(value), nodes[first_use[value]], nodes[i])
                            ? RetiredByRun(nodes, i)
                            : LeftBy(starts, computed, nodes, i);
      if (later != kNone) retired_[later].push_back(i);
    }
  }

  // A gradient to which a run of micro-batches has added: all of a chunk are final at once, and
  // leave beside the next run.
  bool EndsWithRun(int value, const Node& first, const Node& last) const {
    return graph_.values[value].cls == v1::GRADIENT &&
           last.mark - first.mark > last.turn - first.turn;
  }

  static int RetiredByRun(const std::vector<Node>& nodes, int i) {
    for (int j = i + 1; j < static_cast<int>(nodes.size()); ++j) {
      const bool far = nodes[j].turn >= nodes[i].turn + kRetireMarks;
      if (far && nodes[j].stream == kComputeStream) return j;
    }
    return kNone;
  }

  static bool LeavesDevice(const Node& node) {
    return node.copy() != nullptr && node.copy()->kind == v1::TO_HOST;
  }

  // The computation that begins the next value but one that leaves, or one a few layers behind.
  static int LeftBy(const std::vector<int>& starts, const std::vector<int>& computed,
                    const std::vector<Node>& nodes, int i) {
    auto next = std::upper_bound(starts.begin(), starts.end(), i);
    for (int k = 1; k < kLeaving && next != starts.end(); ++k) ++next;
    const auto start = next == starts.end()
                           ? computed.end()
                           : std::lower_bound(computed.begin(), computed.end(), *next);
    const int by_layers = RetiredBy(nodes, i);
    if (start == computed.end()) return by_layers;
    return by_layers == kNone ? *start : std::min(*start, by_layers);
  }

  // The first computation that is far enough behind node i.
  static int RetiredBy(const std::vector<Node>& nodes, int i) {
    const auto* transfer = std::get_if<Transfer>(&nodes[i].what);
    if (transfer != nullptr && transfer->done_by_pass == kNone) return kNone;
    for (int j = i + 1; j < static_cast<int>(nodes.size()); ++j) {
      const bool far = transfer != nullptr ? nodes[j].pass >= transfer->done_by_pass
                                           : nodes[j].mark >= nodes[i].mark + kRetireMarks;
      if (far && nodes[j].stream == kComputeStream) return j;
    }
    return kNone;
  }

  // For each other stream the last node that conflicts with `node`, or that it must follow to share
  // memory; earlier ones of that stream come before it anyway. Those that `clock` knows to have
  // finished are not looked for.
  Clock Dependencies(int index, const Node& node, const Clock& clock) {
    Clock latest(last_.size(), kNone);
    if (TakesNewMemory(node)) latest[kComputeStream] = last_[kComputeStream];
    if (const auto retired = retired_.find(index); retired != retired_.end()) {
      for (int i : retired->second) {
        int& last = latest[(*nodes_)[i].stream];
        last = std::max(last, i);
      }
    }
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
      for (const UsesOfStream& others : uses_[root.value]) {
        if (others.stream == node.stream) continue;
        int& last = latest[others.stream];
        last = std::max(last, LastConflict(use, others.uses, std::max(last, clock[others.stream])));
      }
      uses.emplace_back(root.value, use);
    }
    for (const auto& [value, use] : uses) UsesOf(value, node.stream).push_back(use);
    return latest;
  }

  // The last node after `known` that conflicts; kNone if there is none. A value that is used all
  // over a long step has many uses, nearly all of them known.
  static int LastConflict(const Use& use, const std::vector<Use>& others, int known) {
    for (auto other = others.rbegin(); other != others.rend() && other->node > known; ++other) {
      if (Conflict(use, *other)) return other->node;
    }
    return kNone;
  }

  std::vector<Use>& UsesOf(int value, int stream) {
    std::vector<UsesOfStream>& of_value = uses_[value];
    for (UsesOfStream& one : of_value) {
      if (one.stream == stream) return one.uses;
    }
    of_value.push_back({.stream = stream, .uses = {}});
    return of_value.back().uses;
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
  std::vector<std::vector<UsesOfStream>> uses_;  // by value
  std::map<int, std::vector<int>> retired_;      // by the node that waits
  const std::vector<Node>* nodes_ = nullptr;
};

}  // namespace

void AssignStreams(Graph* graph) {
  graph->streams.clear();
  StreamTable streams(graph);
  for (Sequence& sequence : graph->sequences) {
    for (Node& node : sequence.nodes) node.stream = streams.Of(node);
  }
  for (Sequence& sequence : graph->sequences) Waits(*graph).Assign(&sequence.nodes);
}

}  // namespace terrace::compiler
