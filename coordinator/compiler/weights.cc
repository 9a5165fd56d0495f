// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/weights.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {

Slice Weights::Of(TensorRole role, int layer) {
  const int index = parameters_.Find(role, layer);
  if (index == kNone) return {};
  const Parameter& parameter = parameters_.all()[index];
  if (parameter.weight != kNone) return builder_.graph().Whole(parameter.weight);
  if (!gathered_.contains(index)) Gather(parameters_.units()[parameter.unit]);
  return builder_.graph().Whole(gathered_.at(index));
}

void Weights::Gather(const Unit& unit) {
  Graph& graph = builder_.graph();
  const int layer = std::exchange(builder_.layer, kNone);  // the unit's name tells it
  const Slice all = builder_.NewValue(absl::StrCat("gathered.", unit.name), v1::PARAMETER,
                                      kernels::DType::kF32, {unit.elements});
  builder_.layer = layer;
  const bool had_rule = std::exchange(builder_.has_rule, false);
  builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard, graph.Whole(unit.master), all,
                      absl::StrCat("gather ", unit.name));
  builder_.has_rule = had_rule;
  for (int i : unit.parameters) {
    const Parameter& parameter = parameters_.all()[i];
    gathered_[i] = graph.Add({.name = absl::StrCat("gathered.", parameter.first().name),
                              .cls = v1::PARAMETER,
                              .shape = parameter.shape,
                              .sequence = builder_.sequence(),
                              .inside = all.value,
                              .inside_offset = parameter.offset,
                              .parameter = i});
  }
}

bool GathersWeights(const Graph& graph, const Node& node) {
  return node.collective() != nullptr && node.collective()->kind == v1::ALL_GATHER &&
         graph.values[node.operands[0].value].cls == v1::PARAMETER &&
         graph.values[node.operands[1].value].lifetime == v1::STEP;
}

}  // namespace terrace::compiler
