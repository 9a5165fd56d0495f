// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph/last_uses.h"

#include <algorithm>

namespace terrace::compiler {

LastUses::LastUses(const Graph& graph, const std::vector<Node>& nodes) : graph_(graph) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Slice& operand : nodes[i].operands) {
      if (operand.absent()) continue;
      const Slice root = graph.Root(operand);
      if (graph.values[root.value].lifetime != v1::PERSISTENT) continue;
      const int64_t span = root.shape.SpanBytes() / kernels::SizeOf(root.shape.dtype);
      last_[root.value][{root.offset, root.offset + span}] = i;
    }
  }
}

size_t LastUses::Of(int value) const {
  const Slice root = graph_.Root(graph_.Whole(value));
  const auto uses = last_.find(root.value);
  size_t last = 0;
  if (uses == last_.end()) return last;
  const int64_t end = root.offset + root.shape.Elements();
  for (const auto& [elements, node] : uses->second) {
    if (elements.first < end && elements.second > root.offset) last = std::max(last, node);
  }
  return last;
}

}  // namespace terrace::compiler
