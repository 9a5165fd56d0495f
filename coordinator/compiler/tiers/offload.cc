// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/offload.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/tiers/fetch.h"
#include "coordinator/compiler/tiers/live_ranges.h"

namespace terrace::compiler {
namespace {

// Smaller activations are not worth a copy.
constexpr int64_t kOffloadedBytes = int64_t{64} << 10;

class Offloader {
 public:
  Offloader(int64_t chunk_bytes, Builder* builder)
      : builder_(*builder),
        graph_(builder->graph()),
        edits_(builder),
        copies_(chunk_bytes, builder) {}

  // Returns the home.
  int Offload(const Offloaded& offloaded, const std::vector<LiveRange>& ranges) {
    Value at_home = graph_.values[offloaded.value];
    at_home.name += ".home";
    at_home.tier = offloaded.tier;
    const int home = graph_.Add(std::move(at_home));
    // A loop has one text for all of its iterations.
    const std::string name = ReplaceMicroBatch(graph_.values[offloaded.value].name, "");
    int here = offloaded.value;
    std::vector<Elements> at_rest;
    for (size_t b = 0; b < ranges.size(); ++b) {
      if (b > 0) {
        here = edits_.Again(offloaded.value, ranges[b], b);
        FetchBefore(ranges[b].nodes.front(), at_rest, home, here, name);
      }
      const bool last = b + 1 == ranges.size();
      std::vector<Elements> leaves = Merged(ranges[b].written);
      at_rest.insert(at_rest.end(), leaves.begin(), leaves.end());
      at_rest = Merged(std::move(at_rest));
      // What is needed after is what its last uses saw, of which one may be a norm: all of it goes.
      if (last && offloaded.needed_after) leaves = at_rest;
      if (!last || offloaded.needed_after)
        MoveAfter(ranges[b].nodes.back(), leaves, here, home, name);
    }
    return home;
  }

  void Apply() { edits_.Apply(); }

 private:
  Slice Part(int value, const Elements& part) const {
    return Range(graph_.Whole(value), part.first, part.second - part.first);
  }

  void FetchBefore(size_t node, const std::vector<Elements>& parts, int home, int here,
                   const std::string& name) {
    edits_.Before(node, [&] {
      const FetchScope fetch(&builder_);
      for (const Elements& part : parts) copies_.ToDevice(Part(home, part), Part(here, part), name);
    });
  }

  void MoveAfter(size_t node, const std::vector<Elements>& parts, int here, int home,
                 const std::string& name) {
    edits_.After(node, [&] {
      for (const Elements& part : parts)
        copies_.FromDevice(Part(here, part), Part(home, part), name);
    });
  }

  Builder& builder_;
  Graph& graph_;
  LiveRangeEdits edits_;
  TierCopies copies_;
};

}  // namespace

std::map<int, int> OffloadValues(const std::vector<Offloaded>& values, int64_t chunk_bytes,
                                 Builder* builder) {
  std::map<int, int> homes;
  if (values.empty()) return homes;
  const auto ranges = FindLiveRanges(builder->graph(), builder->nodes());
  Offloader offloader(chunk_bytes, builder);
  for (const Offloaded& offloaded : values) {
    const std::vector<LiveRange>& own = ranges.at(offloaded.value);
    if (own.size() > 1 || offloaded.needed_after) {
      homes[offloaded.value] = offloader.Offload(offloaded, own);
    }
  }
  offloader.Apply();
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

std::vector<Offloaded> OffloadedActivations(const Graph& graph, const std::vector<Node>& nodes,
                                            const v1::TierShares& shares) {
  std::vector<Offloaded> offloaded;
  // The same values of each micro-batch leave, so that a step of many repeats itself.
  std::map<int, TierChooser> choosers;
  const std::set<int> received = Received(graph, nodes);
  for (const auto& [value, ranges] : FindLiveRanges(graph, nodes)) {
    const Value& v = graph.values[value];
    if (received.contains(value)) continue;
    const int64_t bytes = v.elements() * kernels::SizeOf(v.dtype);
    if (v.cls != v1::ACTIVATION || v.tier != v1::DEVICE || bytes < kOffloadedBytes ||
        ranges.size() < 2) {
      continue;
    }
    const int micro_batch = nodes[ranges[0].nodes[0]].micro_batch;
    TierChooser& chooser = choosers.try_emplace(micro_batch, shares).first->second;
    v1::Tier tier = chooser.Next(v.elements());
    // A drive takes whole pages.
    if (tier == v1::NVME && bytes % kNvmeAlignment != 0) tier = v1::HOST;
    if (tier != v1::DEVICE) offloaded.push_back({.value = value, .tier = tier});
  }
  return offloaded;
}

}  // namespace terrace::compiler
