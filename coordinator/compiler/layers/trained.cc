// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/trained.h"

#include <set>

namespace terrace::compiler {
namespace {

class Dependents {
 public:
  Dependents(const Slice& input, const Parameters& parameters, const Graph& graph)
      : parameters_(parameters), graph_(graph) {
    if (!input.absent()) values_.insert(RootOf(input));
  }

  void Visit(Node* node) {
    bool depends = false;
    for (size_t k = 0; k < node->operands.size(); ++k) {
      if (Reads(*node, static_cast<int>(k))) depends = depends || Depends(node->operands[k]);
    }
    const Compute* compute = node->compute();
    if (compute != nullptr && compute->op == kernels::Op::kMatmul) {
      node->input_gradient = Depends(node->operands[0]);
      node->weight_gradient = Depends(node->operands[1]);
    }
    if (!depends) {
      node->has_rule = false;
      return;
    }
    for (size_t k = 0; k < node->operands.size(); ++k) {
      if (Writes(*node, static_cast<int>(k))) values_.insert(RootOf(node->operands[k]));
    }
  }

 private:
  bool Depends(const Slice& slice) const {
    const bool is_weight = graph_.values[slice.value].parameter != kNone;
    return is_weight ? parameters_.Trains(slice, graph_) : values_.contains(RootOf(slice));
  }
  int RootOf(const Slice& slice) const { return graph_.Root(slice).value; }

  const Parameters& parameters_;
  const Graph& graph_;
  std::set<int> values_;  // that lie in no other
};

}  // namespace

void KeepTrainedRules(const Slice& input, const Parameters& parameters, const Graph& graph,
                      std::vector<Segment>* segments) {
  Dependents dependents(input, parameters, graph);
  for (Segment& segment : *segments) {
    for (Node& node : segment.nodes) dependents.Visit(&node);
  }
}

}  // namespace terrace::compiler
