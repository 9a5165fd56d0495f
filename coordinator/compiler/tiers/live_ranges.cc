// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/live_ranges.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {

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

std::map<int, std::vector<LiveRange>> FindLiveRanges(const Graph& graph,
                                                     const std::vector<Node>& nodes) {
  std::map<int, std::vector<LiveRange>> ranges;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t k = 0; k < nodes[i].operands.size(); ++k) {
      if (nodes[i].operands[k].absent()) continue;
      const Slice slice = graph.Root(nodes[i].operands[k]);
      const int root = slice.value;
      if (graph.values[root].lifetime != v1::STEP) continue;
      std::vector<LiveRange>& own = ranges[root];
      // Gradients, unlike activations, serve all micro-batches that go through the same layers.
      const bool by_turns = graph.values[root].cls != v1::ACTIVATION;
      const auto when = [&](size_t node) { return by_turns ? nodes[node].turn : nodes[node].mark; };
      const bool goes_on = !own.empty() && when(i) <= when(own.back().nodes.back()) + kNearMarks;
      if (!goes_on) own.emplace_back();
      if (own.back().nodes.empty() || own.back().nodes.back() != i) own.back().nodes.push_back(i);
      if (!Writes(nodes[i], static_cast<int>(k))) continue;
      const int64_t span = slice.shape.SpanBytes() / kernels::SizeOf(slice.shape.dtype);
      own.back().written.push_back({slice.offset, slice.offset + span});
    }
  }
  return ranges;
}

int LiveRangeEdits::Again(int value, const LiveRange& range, size_t number) {
  Value again = graph_.values[value];
  again.name = absl::StrCat(again.name, ".back", number);
  const int here = graph_.Add(std::move(again));
  for (const size_t i : range.nodes) {
    for (Slice& slice : nodes_[i].operands) {
      if (!slice.absent()) slice.value = Renamed(slice.value, value, here);
    }
  }
  return here;
}

void LiveRangeEdits::Apply() {
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

// The same place in `here` as `inner` has in `value`.
int LiveRangeEdits::Renamed(int inner, int value, int here) {
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

}  // namespace terrace::compiler
