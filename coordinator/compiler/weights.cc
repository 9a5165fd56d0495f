// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/weights.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/fetch.h"

namespace terrace::compiler {

Slice Weights::Of(TensorRole role, int layer) {
  const int index = parameters_.Find(role, layer);
  return index == kNone ? Slice{} : OfParameter(index);
}

// The value that passes read or bring, and that lasts from step to step; kNone when there is none.
int Weights::Lasting(const Parameter& parameter) {
  return parameter.rounded != kNone ? parameter.rounded : parameter.weight;
}

Slice Weights::OfParameter(int index) {
  const Parameter& parameter = parameters_.all()[index];
  const Unit& unit = parameters_.units()[parameter.unit];
  Graph& graph = builder_.graph();
  const int lasting = Lasting(parameter);
  if (lasting != kNone && graph.TierOf(graph.Whole(lasting)) == v1::DEVICE)
    return graph.Whole(lasting);
  if (!brought_.contains(index)) {
    if (lasting == kNone) {
      Gather(unit);
    } else {
      Fetch(index);
    }
  }
  return graph.Whole(brought_.at(index));
}

void Weights::Fetch(int index) {
  Graph& graph = builder_.graph();
  const Parameter& parameter = parameters_.all()[index];
  const Slice rest = Flat(graph.Whole(Lasting(parameter)));
  const int layer = std::exchange(builder_.layer, kNone);  // the tensor's name tells it
  const std::string name = parameter.name();
  const Slice here = builder_.NewValue(absl::StrCat("fetched.", name), v1::PARAMETER,
                                       rest.shape.dtype, parameter.shape);
  builder_.layer = layer;
  graph.values[here.value].parameter = index;
  graph.values[here.value].tile = parameter.tile.size > 0;
  {
    const FetchScope fetch(&builder_);
    copies_.ToDevice(rest, Flat(here), name);
  }
  brought_[index] = here.value;
}

void Weights::Gather(const Unit& unit) {
  Graph& graph = builder_.graph();
  const int layer = std::exchange(builder_.layer, kNone);  // the unit's name tells it
  const Slice all = builder_.NewValue(absl::StrCat("gathered.", unit.name), v1::PARAMETER,
                                      unit.dtype, {unit.elements});
  builder_.layer = layer;
  graph.values[all.value].tile = unit.tile;
  GatherInto(unit, all);
  for (int i : unit.parameters) {
    const Parameter& parameter = parameters_.all()[i];
    brought_[i] = graph.Add({.name = absl::StrCat("gathered.", parameter.name()),
                             .cls = v1::PARAMETER,
                             .dtype = unit.dtype,
                             .shape = parameter.shape,
                             .sequence = builder_.sequence(),
                             .inside = all.value,
                             .inside_offset = parameter.offset,
                             .parameter = i});
  }
}

void Weights::GatherInto(const Unit& unit, Slice all) {
  const Slice rest = builder_.graph().Whole(unit.rounded != kNone ? unit.rounded : unit.master);
  const auto gather = [&] {
    builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard, OnDevice(unit, rest), all,
                        absl::StrCat("gather ", unit.name));
  };
  if (unit.tile || builder_.graph().TierOf(rest) != v1::DEVICE) {
    const FetchScope fetch(&builder_);
    gather();
    return;
  }
  const bool had_rule = std::exchange(builder_.has_rule, false);
  gather();
  builder_.has_rule = had_rule;
}

Slice Weights::OnDevice(const Unit& unit, Slice rest) {
  const bool rounds = rest.shape.dtype != unit.dtype;
  const bool comes = builder_.graph().TierOf(rest) != v1::DEVICE;
  if (!rounds && !comes) return rest;
  const Slice piece = builder_.NewValue(absl::StrCat(comes ? "fetched." : "rounded.", unit.name),
                                        comes ? v1::PARAMETER : v1::COMMUNICATION, unit.dtype,
                                        {unit.shard_elements});
  if (rounds) {
    copies_.Round(rest, piece, unit.name);
  } else {
    copies_.ToDevice(rest, piece, unit.name);
  }
  return piece;
}

void Weights::Restore(const Unit& unit) { GatherInto(unit, builder_.graph().Whole(unit.weights)); }

void Weights::Round(const Unit& unit) {
  Graph& graph = builder_.graph();
  if (unit.master != kNone)
    return copies_.Round(graph.Whole(unit.master), graph.Whole(unit.rounded), unit.name);
  for (const int i : unit.parameters) {
    const Parameter& parameter = parameters_.all()[i];
    copies_.Round(Flat(graph.Whole(parameter.weight)), Flat(graph.Whole(parameter.rounded)),
                  parameter.name());
  }
}

bool GathersWeights(const Graph& graph, const Node& node) {
  return node.collective() != nullptr && node.collective()->kind == v1::ALL_GATHER &&
         node.fetch == kNone && graph.values[node.operands[0].value].cls == v1::PARAMETER &&
         graph.values[node.operands[1].value].lifetime == v1::STEP;
}

}  // namespace terrace::compiler
