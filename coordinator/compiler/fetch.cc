// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/fetch.h"

#include <algorithm>
#include <map>
#include <set>

namespace terrace::compiler {
namespace {

constexpr int kMostMarksAhead = 2;

struct Fetch {
  std::vector<size_t> nodes;
  int value = kNone;     // what is brought, outermost
  size_t first_use = 0;  // a node that is no part of it
  size_t readable = 0;   // from this node on what it reads is there
};

std::set<int> RootsOf(const Graph& graph, const Node& node, bool written) {
  std::set<int> roots;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const bool taken =
        written ? Writes(node, static_cast<int>(k)) : Reads(node, static_cast<int>(k));
    if (taken) roots.insert(graph.Root(node.operands[k]).value);
  }
  return roots;
}

// The last value that a fetch writes is what it brings.
std::map<int, Fetch> FindFetches(const Graph& graph, const std::vector<Node>& nodes) {
  std::map<int, Fetch> fetches;
  std::map<int, size_t> written;  // by value: the node after the last that wrote it, of no fetch
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].fetch == kNone) {
      for (int root : RootsOf(graph, nodes[i], /*written=*/true)) written[root] = i + 1;
      continue;
    }
    Fetch& fetch = fetches[nodes[i].fetch];
    fetch.nodes.push_back(i);
    for (int root : RootsOf(graph, nodes[i], /*written=*/false)) {
      if (const auto it = written.find(root); it != written.end())
        fetch.readable = std::max(fetch.readable, it->second);
    }
    fetch.value = graph.Root(nodes[i].operands.back()).value;
  }
  return fetches;
}

}  // namespace

void PlaceFetches(const Graph& graph, std::vector<Node>* nodes) {
  std::map<int, Fetch> fetches = FindFetches(graph, *nodes);
  std::map<int, int> fetch_of;  // by value
  for (const auto& [number, fetch] : fetches) {
    if (graph.values[fetch.value].lifetime == v1::STEP) fetch_of[fetch.value] = number;
  }
  std::vector<Fetch*> in_order;  // of first use
  std::map<int, bool> used;
  for (size_t i = 0; i < nodes->size(); ++i) {
    if ((*nodes)[i].fetch != kNone) continue;
    for (const Slice& slice : (*nodes)[i].operands) {
      if (slice.absent()) continue;
      const auto it = fetch_of.find(graph.Root(slice).value);
      if (it == fetch_of.end() || used[it->second]) continue;
      used[it->second] = true;
      fetches.at(it->second).first_use = i;
      in_order.push_back(&fetches.at(it->second));
    }
  }
  const size_t after_inputs = static_cast<size_t>(
      std::find_if(nodes->begin(), nodes->end(),
                   [](const Node& node) { return !std::holds_alternative<Input>(node.what); }) -
      nodes->begin());
  std::map<int, size_t> first_with_mark;
  for (size_t i = nodes->size(); i-- > 0;) first_with_mark[(*nodes)[i].mark] = i;
  std::vector<bool> moves(nodes->size(), false);
  std::map<size_t, std::vector<size_t>> before;  // node -> those that go before it
  for (size_t k = 0; k < in_order.size(); ++k) {
    const int mark = (*nodes)[in_order[k]->first_use].mark;
    size_t target = std::max({after_inputs, in_order[k]->readable,
                              first_with_mark.lower_bound(mark - kMostMarksAhead)->second});
    if (k >= static_cast<size_t>(kFetchAhead))
      target = std::max(target, in_order[k - kFetchAhead]->first_use);
    target = std::min(target, in_order[k]->first_use);
    for (size_t i : in_order[k]->nodes) {
      moves[i] = true;
      before[target].push_back(i);
    }
  }
  std::vector<Node> result;
  for (size_t i = 0; i < nodes->size(); ++i) {
    for (size_t k : before[i]) {
      result.push_back((*nodes)[k]);
      result.back().mark = (*nodes)[i].mark;
      result.back().pass = (*nodes)[i].pass;
    }
    if (!moves[i]) result.push_back((*nodes)[i]);
  }
  *nodes = std::move(result);
}

}  // namespace terrace::compiler
