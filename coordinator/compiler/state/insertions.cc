// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/insertions.h"

#include <algorithm>
#include <utility>

#include "coordinator/compiler/state/weights.h"

namespace terrace::compiler {

void Insertions::Apply(std::vector<Node>* nodes) {
  std::vector<Node> result;
  for (size_t i = 0; i < nodes->size(); ++i) {
    const Node::Standing standing = (*nodes)[i].standing();
    result.push_back(std::move((*nodes)[i]));
    const auto inserted = after_.find(i);
    if (inserted == after_.end()) continue;
    for (Node& node : inserted->second) {
      node.StandAt(standing);
      result.push_back(std::move(node));
    }
  }
  *nodes = std::move(result);
  after_.clear();
}

void MoveFetchesAhead(const Graph& graph, std::vector<Node>* nodes) {
  const auto first_of = [&](auto reached) {
    return static_cast<size_t>(std::find_if(nodes->begin(), nodes->end(), reached) -
                               nodes->begin());
  };
  // By the index before which it goes. Inputs stay in front of everything.
  std::map<size_t, std::vector<size_t>> ahead;
  std::vector<bool> moves(nodes->size(), false);
  std::map<int, size_t> first_with_turn, first_with_pass;
  for (size_t i = nodes->size(); i-- > 0;) {
    first_with_turn[(*nodes)[i].turn] = i;
    first_with_pass[(*nodes)[i].pass] = i;
  }
  const size_t after_inputs =
      first_of([](const Node& node) { return !std::holds_alternative<Input>(node.what); });
  for (size_t i = 0; i < nodes->size(); ++i) {
    const Node& node = (*nodes)[i];
    const auto* transfer = std::get_if<Transfer>(&node.what);
    size_t target = i;
    if (transfer != nullptr && transfer->kind == v1::RECEIVE) {
      target = first_with_pass.lower_bound(node.pass - 1)->second;
    } else if (GathersWeights(graph, node)) {
      target = first_with_turn.lower_bound(node.turn - 1)->second;
    }
    target = std::max(target, after_inputs);
    if (target >= i) continue;
    moves[i] = true;
    ahead[target].push_back(i);
  }
  // What goes before a node that moves as well goes to where that one stood.
  std::vector<Node::Standing> stood;
  for (const Node& node : *nodes) stood.push_back(node.standing());
  std::vector<Node> result;
  for (size_t i = 0; i < nodes->size(); ++i) {
    // A fetch that stays is needed before those that come here, and messages keep their order.
    const bool fetches =
        std::holds_alternative<Transfer>((*nodes)[i].what) || GathersWeights(graph, (*nodes)[i]);
    if (!moves[i] && fetches) result.push_back((*nodes)[i]);
    for (size_t k : ahead[i]) {
      Node& node = (*nodes)[k];
      node.StandAt({.mark = std::min(node.mark, stood[i].mark),
                    .turn = std::min(node.turn, stood[i].turn),
                    .pass = std::min(node.pass, stood[i].pass)});
      result.push_back(node);
    }
    if (!moves[i] && !fetches) result.push_back((*nodes)[i]);
  }
  *nodes = std::move(result);
}

}  // namespace terrace::compiler
