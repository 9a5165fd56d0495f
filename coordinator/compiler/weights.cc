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

Slice Weights::OfParameter(int index) {
  const Parameter& parameter = parameters_.all()[index];
  const Unit& unit = parameters_.units()[parameter.unit];
  Graph& graph = builder_.graph();
  if (parameter.weight != kNone && graph.TierOf(graph.Whole(parameter.weight)) == v1::DEVICE)
    return graph.Whole(parameter.weight);
  if (!brought_.contains(index)) {
    if (parameter.weight == kNone) {
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
  const Slice rest = Flat(graph.Whole(parameter.weight));
  const int layer = std::exchange(builder_.layer, kNone);  // the tensor's name tells it
  const std::string name = parameter.name();
  const Slice here = builder_.NewValue(absl::StrCat("fetched.", name), v1::PARAMETER,
                                       parameter.dtype, parameter.shape);
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
                             .dtype = parameter.dtype,
                             .shape = parameter.shape,
                             .sequence = builder_.sequence(),
                             .inside = all.value,
                             .inside_offset = parameter.offset,
                             .parameter = i});
  }
}

void Weights::GatherInto(const Unit& unit, Slice all) {
  const auto gather = [&](Slice piece) {
    builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard, piece, all,
                        absl::StrCat("gather ", unit.name));
  };
  const bool comes = unit.weight_tier != v1::DEVICE;
  if (comes || unit.tile) {
    const FetchScope fetch(&builder_);
    gather(Piece(unit));
    return;
  }
  const bool had_rule = std::exchange(builder_.has_rule, false);
  gather(Piece(unit));
  builder_.has_rule = had_rule;
}

Slice Weights::Piece(const Unit& unit) {
  const Slice master = builder_.graph().Whole(unit.master);
  if (unit.rounded != kNone) return builder_.graph().Whole(unit.rounded);
  if (unit.weight_tier != v1::DEVICE) {
    const Slice piece = NewPiece(unit, "fetched.", v1::PARAMETER);
    copies_.ToDevice(master, piece, unit.name);
    return piece;
  }
  if (!unit.rounds()) return master;
  const Slice piece = NewPiece(unit, "rounded.", v1::COMMUNICATION);
  Round(unit, piece);
  return piece;
}

Slice Weights::NewPiece(const Unit& unit, const char* kind, v1::BufferClass cls) {
  return builder_.NewValue(absl::StrCat(kind, unit.name), cls, unit.dtype, {unit.shard_elements});
}

void Weights::Round(const Unit& unit, Slice piece) {
  builder_.Compute(kernels::Op::kCast, kernels::NoAttrs{},
                   {builder_.graph().Whole(unit.master), piece}, absl::StrCat("round ", unit.name));
}

void Weights::Restore(const Unit& unit) {
  Graph& graph = builder_.graph();
  if (unit.rounded != kNone) Round(unit, graph.Whole(unit.rounded));
  if (unit.weights != kNone) GatherInto(unit, graph.Whole(unit.weights));
}

bool GathersWeights(const Graph& graph, const Node& node) {
  return node.collective() != nullptr && node.collective()->kind == v1::ALL_GATHER &&
         node.fetch == kNone && graph.values[node.operands[0].value].cls == v1::PARAMETER &&
         graph.values[node.operands[1].value].lifetime == v1::STEP;
}

}  // namespace terrace::compiler
