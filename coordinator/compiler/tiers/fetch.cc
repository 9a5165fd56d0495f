// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/fetch.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace terrace::compiler {
namespace {

constexpr int kMostMarksAhead = 2;

struct Fetch {
  std::vector<size_t> nodes;
  int value = kNone;     // what is prefetched, outermost
  size_t first_use = 0;  // a node that is no part of it
  size_t readable = 0;   // from this node on what it reads is there
  bool used = false;
  bool of_run = false;  // several micro-batches of a run use it
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

// The last value that a fetch writes is what it prefetches.
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

// Values that are prefetched for a use, by that use.
std::vector<Fetch*> InOrderOfUse(const Graph& graph, const std::vector<Node>& nodes,
                                 std::map<int, Fetch>* fetches) {
  std::map<int, Fetch*> fetch_of;  // by value
  for (auto& [number, fetch] : *fetches) {
    if (graph.values[fetch.value].lifetime == v1::STEP) fetch_of[fetch.value] = &fetch;
  }
  std::vector<Fetch*> in_order;
  std::map<const Fetch*, int> user;  // the first micro-batch that uses it
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].fetch != kNone) continue;
    for (const Slice& slice : nodes[i].operands) {
      if (slice.absent()) continue;
      const auto it = fetch_of.find(graph.Root(slice).value);
      if (it == fetch_of.end()) continue;
      Fetch& fetch = *it->second;
      if (!std::exchange(fetch.used, true)) {
        fetch.first_use = i;
        in_order.push_back(&fetch);
      }
      if (nodes[i].micro_batch == kNone) continue;  // a copy, of no pass
      const auto [first, is_first] = user.try_emplace(&fetch, nodes[i].micro_batch);
      fetch.of_run |= first->second != nodes[i].micro_batch;
    }
  }
  return in_order;
}

// Where the runs of passes over one chunk begin. A run's first pass takes turns, the others none.
std::vector<size_t> BeginsOfRuns(const std::vector<Node>& nodes) {
  std::map<int, int> run_of_pass;
  for (const Node& node : nodes) {
    int& run = run_of_pass[node.pass];
    run = std::max(run, node.turn);
  }
  std::map<int, size_t> begins;
  for (size_t i = nodes.size(); i-- > 0;) begins[run_of_pass.at(nodes[i].pass)] = i;
  std::vector<size_t> in_order;
  for (const auto& [run, begin] : begins) in_order.push_back(begin);
  std::sort(in_order.begin(), in_order.end());
  return in_order;
}

// Moves nodes to before others. Borrows the nodes. Used by one thread.
class Placing {
 public:
  Placing(const Graph& graph, std::vector<Node>* nodes) : graph_(graph), nodes_(*nodes) {
    after_inputs_ = static_cast<size_t>(
        std::find_if(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return !std::holds_alternative<Input>(node.what); }) -
        nodes_.begin());
  }

  void Place() {
    std::map<int, Fetch> fetches = FindFetches(graph_, nodes_);
    std::vector<const Fetch*> of_passes, of_runs;
    for (const Fetch* fetch : InOrderOfUse(graph_, nodes_, &fetches)) {
      (fetch->of_run ? of_runs : of_passes).push_back(fetch);
    }
    PlaceOfPasses(of_passes);
    if (!of_runs.empty()) PlaceOfRuns(of_runs);
    Move();
  }

 private:
  void PlaceOfPasses(const std::vector<const Fetch*>& fetches) {
    std::map<int, size_t> first_with_mark;
    for (size_t i = nodes_.size(); i-- > 0;) first_with_mark[nodes_[i].mark] = i;
    for (size_t k = 0; k < fetches.size(); ++k) {
      const int mark = nodes_[fetches[k]->first_use].mark;
      size_t target = first_with_mark.lower_bound(mark - kMostMarksAhead)->second;
      if (k >= static_cast<size_t>(kFetchAhead))
        target = std::max(target, fetches[k - kFetchAhead]->first_use);
      for (const size_t i : fetches[k]->nodes) PutBefore(target, i, *fetches[k]);
    }
  }

  // What a run uses comes piece by piece through the run before it, so that what passes of that run
  // need has its turns between.
  void PlaceOfRuns(const std::vector<const Fetch*>& fetches) {
    const std::vector<size_t> begins = BeginsOfRuns(nodes_);
    std::map<size_t, std::vector<std::pair<size_t, const Fetch*>>> pieces;  // by run
    for (const Fetch* fetch : fetches) {
      const auto next = std::upper_bound(begins.begin(), begins.end(), fetch->first_use);
      auto& of_run = pieces[static_cast<size_t>(next - begins.begin()) - 1];
      for (const size_t i : fetch->nodes) of_run.emplace_back(i, fetch);
    }
    for (const auto& [run, of_run] : pieces) {
      const std::vector<size_t> beside =
          run > 0 ? Computations(begins[run - 1], begins[run]) : std::vector<size_t>();
      for (size_t k = 0; k < of_run.size(); ++k) {
        const size_t target = beside.empty() ? 0 : beside[beside.size() * k / of_run.size()];
        PutBefore(target, of_run[k].first, *of_run[k].second);
      }
    }
  }

  std::vector<size_t> Computations(size_t begin, size_t end) const {
    std::vector<size_t> computations;
    for (size_t i = begin; i < end; ++i) {
      if (nodes_[i].compute() != nullptr) computations.push_back(i);
    }
    return computations;
  }

  void PutBefore(size_t target, size_t node, const Fetch& fetch) {
    target = std::min(std::max({target, after_inputs_, fetch.readable}), fetch.first_use);
    moves_.insert(node);
    before_[target].push_back(node);
  }

  void Move() {
    std::vector<Node> result;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (const auto it = before_.find(i); it != before_.end()) {
        for (const size_t k : it->second) {
          result.push_back(nodes_[k]);
          result.back().mark = nodes_[i].mark;
          result.back().pass = nodes_[i].pass;
        }
      }
      if (!moves_.contains(i)) result.push_back(nodes_[i]);
    }
    nodes_ = std::move(result);
  }

  const Graph& graph_;
  std::vector<Node>& nodes_;
  size_t after_inputs_ = 0;
  std::set<size_t> moves_;
  std::map<size_t, std::vector<size_t>> before_;  // node -> those that go before it
};

}  // namespace

void PlaceFetches(const Graph& graph, std::vector<Node>* nodes) { Placing(graph, nodes).Place(); }

}  // namespace terrace::compiler
