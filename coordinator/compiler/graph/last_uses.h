// Finds the last node of a sequence that uses a persistent value.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "coordinator/compiler/graph/graph.h"

namespace terrace::compiler {

class LastUses {
 public:
  // Borrows the graph.
  LastUses(const Graph& graph, const std::vector<Node>& nodes);

  // The last node that uses any element of `value`; 0 where none does.
  size_t Of(int value) const;

 private:
  using Elements = std::pair<int64_t, int64_t>;  // [begin, end)

  const Graph& graph_;
  std::map<int, std::map<Elements, size_t>> last_;  // by value
};

}  // namespace terrace::compiler
