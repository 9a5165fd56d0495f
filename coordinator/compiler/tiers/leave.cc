// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/leave.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/tiers/bouts.h"
#include "coordinator/compiler/tiers/fetch.h"

namespace terrace::compiler {
namespace {

// Smaller activations are not worth a copy.
constexpr int64_t kLeavingBytes = int64_t{64} << 10;

class Leaver {
 public:
  Leaver(int64_t chunk_bytes, Builder* builder)
      : builder_(*builder),
        graph_(builder->graph()),
        edits_(builder),
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
        here = edits_.Again(leaving.value, bouts[b], b);
        FetchBefore(bouts[b].nodes.front(), at_rest, home, here, name);
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
  BoutEdits edits_;
  TierCopies copies_;
};

}  // namespace

std::map<int, int> LeaveDevice(const std::vector<Leaving>& values, int64_t chunk_bytes,
                               Builder* builder) {
  std::map<int, int> homes;
  if (values.empty()) return homes;
  const auto bouts = FindBouts(builder->graph(), builder->nodes());
  Leaver leaver(chunk_bytes, builder);
  for (const Leaving& leaving : values) {
    const std::vector<Bout>& own = bouts.at(leaving.value);
    if (own.size() > 1 || leaving.needed_after) {
      homes[leaving.value] = leaver.Leave(leaving, own);
    }
  }
  leaver.Apply();
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
        bouts.size() < 2) {
      continue;
    }
    const int micro_batch = nodes[bouts[0].nodes[0]].micro_batch;
    TierChooser& chooser = choosers.try_emplace(micro_batch, shares).first->second;
    v1::Tier tier = chooser.Next(v.elements());
    // A drive takes whole pages.
    if (tier == v1::NVME && bytes % kNvmeAlignment != 0) tier = v1::HOST;
    if (tier != v1::DEVICE) leaving.push_back({.value = value, .tier = tier});
  }
  return leaving;
}

}  // namespace terrace::compiler
