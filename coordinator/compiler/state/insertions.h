// Nodes to be put into a finished list, each right after a given node. Where several follow the
// same node they keep the order in which they were added.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "coordinator/compiler/graph/graph.h"

namespace terrace::compiler {

class Insertions {
 public:
  // `node` takes over the marks of the node it follows.
  void After(size_t index, Node node) { after_[index].push_back(std::move(node)); }
  void Apply(std::vector<Node>* nodes);

 private:
  std::map<size_t, std::vector<Node>> after_;
};

// Moves what fetches for a later use ahead of it, so that it is there in time: gathers of weights
// (ZeRO-3) by one layer, receives by one pass. What they read does not change in between, and what
// they write is theirs alone.
void MoveFetchesAhead(const Graph& graph, std::vector<Node>* nodes);

}  // namespace terrace::compiler
