// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/leave.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/fetch.h"

namespace terrace::compiler {
namespace {

// Smaller activations are not worth a copy.
constexpr int64_t kLeavingBytes = int64_t{64} << 10;

using Elements = std::pair<int64_t, int64_t>;  // [begin, end)

// Consecutive uses of one value.
struct Bout {
  std::vector<size_t> nodes;
  std::vector<Elements> written;
};

// The union, by begin.
std::vector<Elements> Merged(std::vector<Elements> parts) {
  std::sort(parts.begin(), parts.end());
  std::vector<Elements> merged;
  for (const Elements& part : parts) {
    if (!merged.empty() && part.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, part.second);
    } else {
      merged.push_back(part);
    }
  }
  return merged;
}

// By outermost STEP value.
std::map<int, std::vector<Bout>> FindBouts(const Graph& graph, const std::vector<Node>& nodes) {
  std::map<int, std::vector<Bout>> bouts;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t k = 0; k < nodes[i].operands.size(); ++k) {
      if (nodes[i].operands[k].absent()) continue;
      const Slice slice = graph.Root(nodes[i].operands[k]);
      const int root = slice.value;
      if (graph.values[root].lifetime != v1::STEP) continue;
      std::vector<Bout>& own = bouts[root];
      // Gradients, unlike activations, serve all micro-batches that go through the same layers.
      const bool by_turns = graph.values[root].cls != v1::ACTIVATION;
      const auto when = [&](size_t node) { return by_turns ? nodes[node].turn : nodes[node].mark; };
      const bool goes_on = !own.empty() && when(i) <= when(own.back().nodes.back()) + kStayMarks;
      if (!goes_on) own.emplace_back();
      if (own.back().nodes.empty() || own.back().nodes.back() != i) own.back().nodes.push_back(i);
      if (!Writes(nodes[i], static_cast<int>(k))) continue;
      const int64_t span = slice.shape.SpanBytes() / kernels::SizeOf(slice.shape.dtype);
      own.back().written.push_back({slice.offset, slice.offset + span});
    }
  }
  return bouts;
}

class Leaver {
 public:
  Leaver(int64_t chunk_bytes, Builder* builder)
      : builder_(*builder),
        graph_(builder->graph()),
        nodes_(builder->nodes()),
        copies_(chunk_bytes, builder) {}

  // Returns the home.
  int Leave(const Leaving& leaving, const std::vector<Bout>& bouts) {
    Value at_home = graph_.values[leaving.value];
    at_home.name += ".home";
    at_home.tier = leaving.tier;
    const int home = graph_.Add(std::move(at_home));
    // A loop has one text for all of its iterations.
    const std::string name = ReplaceMicroBatch(graph_.values[leaving.value].name, "");
    int here = leaving.value;
    std::vector<Elements> at_rest;
    for (size_t b = 0; b < bouts.size(); ++b) {
      if (b > 0) {
        here = graph_.Add(Again(leaving.value, b));
        FetchBefore(bouts[b].nodes.front(), at_rest, home, here, name);
        for (size_t i : bouts[b].nodes) Rename(leaving.value, here, &nodes_[i]);
      }
      const bool last = b + 1 == bouts.size();
      std::vector<Elements> leaves = Merged(bouts[b].written);
      at_rest.insert(at_rest.end(), leaves.begin(), leaves.end());
      at_rest = Merged(std::move(at_rest));
      // What is needed after is what its last uses saw, of which one may be a norm: all of it goes.
      if (last && leaving.needed_after) leaves = at_rest;
      if (!last || leaving.needed_after) MoveAfter(bouts[b].nodes.back(), leaves, here, home, name);
    }
    return home;
  }

  void Apply() {
    std::vector<Node> result;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node::Standing standing = nodes_[i].standing();
      const auto insert = [&](std::map<size_t, std::vector<Node>>* inserted) {
        const auto it = inserted->find(i);
        if (it == inserted->end()) return;
        for (Node& node : it->second) {
          node.StandAt(standing);
          result.push_back(std::move(node));
        }
      };
      insert(&before_);
      result.push_back(std::move(nodes_[i]));
      insert(&after_);
    }
    nodes_ = std::move(result);
  }

 private:
  Value Again(int value, size_t bout) const {
    Value again = graph_.values[value];
    again.name = absl::StrCat(again.name, ".back", bout);
    return again;
  }

  Slice Part(int value, const Elements& part) const {
    return Range(graph_.Whole(value), part.first, part.second - part.first);
  }

  void FetchBefore(size_t node, const std::vector<Elements>& parts, int home, int here,
                   const std::string& name) {
    builder_.divert = &before_[node];
    builder_.phase = nodes_[node].phase;
    {
      const FetchScope fetch(&builder_);
      for (const Elements& part : parts) copies_.ToDevice(Part(home, part), Part(here, part), name);
    }
    builder_.divert = nullptr;
  }

  void MoveAfter(size_t node, const std::vector<Elements>& parts, int here, int home,
                 const std::string& name) {
    builder_.divert = &after_[node];
    builder_.phase = nodes_[node].phase;
    for (const Elements& part : parts) copies_.FromDevice(Part(here, part), Part(home, part), name);
    builder_.divert = nullptr;
  }

  void Rename(int value, int here, Node* node) {
    for (Slice& slice : node->operands) {
      if (!slice.absent()) slice.value = Renamed(slice.value, value, here);
    }
  }

  // The same place in `here` as `inner` has in `value`.
  int Renamed(int inner, int value, int here) {
    if (inner == value) return here;
    const int outer = graph_.values[inner].inside;
    if (outer == kNone) return inner;
    const int new_outer = Renamed(outer, value, here);
    if (new_outer == outer) return inner;
    const auto [it, is_new] = renamed_.try_emplace({inner, new_outer}, kNone);
    if (is_new) {
      Value copy = graph_.values[inner];
      copy.inside = new_outer;
      it->second = graph_.Add(std::move(copy));
    }
    return it->second;
  }

  Builder& builder_;
  Graph& graph_;
  std::vector<Node>& nodes_;
  TierCopies copies_;
  std::map<size_t, std::vector<Node>> before_, after_;
  std::map<std::pair<int, int>, int> renamed_;  // by inner value and new outer one
};

}  // namespace

std::map<int, int> LeaveDevice(const std::vector<Leaving>& values, int64_t chunk_bytes,
                               Builder* builder) {
  std::map<int, int> homes;
  if (values.empty()) return homes;
  const auto bouts = FindBouts(builder->graph(), builder->nodes());
  const v1::Phase phase = builder->phase;
  Leaver leaver(chunk_bytes, builder);
  for (const Leaving& leaving : values) {
    const std::vector<Bout>& own = bouts.at(leaving.value);
    if (own.size() > 1 || leaving.needed_after) {
      homes[leaving.value] = leaver.Leave(leaving, own);
    }
  }
  leaver.Apply();
  builder->phase = phase;
  return homes;
}

namespace {

// What other stages send: a copy of it to the host waits for them, and the copies behind it with
// it, for which computation waits that those stages may need.
std::set<int> Received(const Graph& graph, const std::vector<Node>& nodes) {
  std::set<int> received;
  for (const Node& node : nodes) {
    const auto* transfer = std::get_if<Transfer>(&node.what);
    if (transfer != nullptr && transfer->kind == v1::RECEIVE)
      received.insert(graph.Root(node.operands[0]).value);
  }
  return received;
}

}  // namespace

std::vector<Leaving> LeavingActivations(const Graph& graph, const std::vector<Node>& nodes,
                                        const v1::TierShares& shares) {
  std::vector<Leaving> leaving;
  // The same values of each micro-batch leave, so that a step of many repeats itself.
  std::map<int, TierChooser> choosers;
  const std::set<int> received = Received(graph, nodes);
  for (const auto& [value, bouts] : FindBouts(graph, nodes)) {
    const Value& v = graph.values[value];
    if (received.contains(value)) continue;
    const int64_t bytes = v.elements() * kernels::SizeOf(v.dtype);
    if (v.cls != v1::ACTIVATION || v.tier != v1::DEVICE || bytes < kLeavingBytes ||
        bytes % kNvmeAlignment != 0 || bouts.size() < 2) {
      continue;
    }
    const int micro_batch = nodes[bouts[0].nodes[0]].micro_batch;
    TierChooser& chooser = choosers.try_emplace(micro_batch, shares).first->second;
    const v1::Tier tier = chooser.Next(v.elements());
    if (tier != v1::DEVICE) leaving.push_back({.value = value, .tier = tier});
  }
  return leaving;
}

}  // namespace terrace::compiler
