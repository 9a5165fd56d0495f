// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/weights.h"

#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/tiers/fetch.h"

namespace terrace::compiler {

using kernels::DType;
using kernels::Op;

Slice Weights::Of(TensorRole role, int layer) {
  const int index = parameters_.Find(role, layer);
  return index == kNone ? Slice{} : OfParameter(index);
}

// The value that passes read or prefetch, and that lasts from step to step; kNone when there is
// none.
int Weights::Lasting(const Parameter& parameter) {
  return parameter.rounded != kNone ? parameter.rounded : parameter.weight;
}

Slice Weights::OfParameter(int index) {
  const Parameter& parameter = parameters_.all()[index];
  const Unit& unit = parameters_.units()[parameter.unit];
  Graph& graph = builder_.graph();
  const int lasting = unit.codes == nullptr ? Lasting(parameter) : kNone;
  if (lasting != kNone && graph.TierOf(graph.Whole(lasting)) == v1::DEVICE)
    return graph.Whole(lasting);
  if (!prefetched_.contains(index)) {
    if (lasting != kNone) {
      Fetch(index);
    } else if (unit.sharded()) {
      Gather(unit);
    } else {
      Decode(index);
    }
  }
  return graph.Whole(prefetched_.at(index));
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
  prefetched_[index] = here.value;
}

Slice Weights::Fetched(const Slice& rest, const std::string& name) {
  if (builder_.graph().TierOf(rest) == v1::DEVICE) return rest;
  const int layer = std::exchange(builder_.layer, kNone);  // the name tells it
  const Slice here =
      builder_.NewValue(name, v1::PARAMETER, rest.shape.dtype, {rest.shape.Elements()});
  builder_.layer = layer;
  copies_.ToDevice(rest, here, name);
  return here;
}

// Scales before codes: a fetch's last value is the one that it is for.
void Weights::Decode(int index) {
  Graph& graph = builder_.graph();
  const Parameter& parameter = parameters_.all()[index];
  const Unit& unit = parameters_.units()[parameter.unit];
  const std::string name = parameter.name();
  Slice codes = graph.Whole(parameter.weight), scales = graph.Whole(parameter.scales);
  if (graph.TierOf(codes) != v1::DEVICE) {
    const FetchScope fetch(&builder_);
    scales = Fetched(scales, absl::StrCat("scales.", name));
    codes = Fetched(codes, absl::StrCat("codes.", name));
  }
  const int layer = std::exchange(builder_.layer, kNone);  // the tensor's name tells it
  const Slice here =
      builder_.NewValue(absl::StrCat("decoded.", name), v1::PARAMETER, unit.dtype, parameter.shape);
  builder_.layer = layer;
  graph.values[here.value].parameter = index;
  const bool had_rule = std::exchange(builder_.has_rule, false);
  builder_.Compute(
      Op::kDecodeBlocks,
      kernels::BlockAttrs{.format = unit.codes->format, .block = parameters_.frozen_block()},
      {codes, scales, Flat(here)}, absl::StrCat("decode ", name));
  builder_.has_rule = had_rule;
  prefetched_[index] = here.value;
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
    prefetched_[i] = graph.Add({.name = absl::StrCat("gathered.", parameter.name()),
                                .cls = v1::PARAMETER,
                                .dtype = unit.dtype,
                                .shape = parameter.shape,
                                .sequence = builder_.sequence(),
                                .inside = all.value,
                                .inside_offset = parameter.offset,
                                .parameter = i});
  }
}

void Weights::GatherCodes(const Unit& unit, Slice all) {
  Graph& graph = builder_.graph();
  const kernels::BlockAttrs attrs = {.format = unit.codes->format,
                                     .block = parameters_.frozen_block()};
  const Slice codes = Message("codes", unit, DType::kU8, unit.elements / unit.codes->packed);
  const Slice scales = Message("scales", unit, DType::kF32, unit.elements / attrs.block);
  const Slice own = graph.Whole(unit.master), own_scales = graph.Whole(unit.scales);
  const bool had_rule = std::exchange(builder_.has_rule, false);
  const auto gather = [&] {
    builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard,
                        Fetched(own_scales, absl::StrCat("scales.own.", unit.name)), scales,
                        absl::StrCat("gather scales of ", unit.name));
    builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard,
                        Fetched(own, absl::StrCat("codes.own.", unit.name)), codes,
                        absl::StrCat("gather ", unit.name));
  };
  if (graph.TierOf(own) != v1::DEVICE) {
    const FetchScope fetch(&builder_);
    gather();
  } else {
    gather();
  }
  builder_.Compute(Op::kDecodeBlocks, attrs, {codes, scales, all},
                   absl::StrCat("decode ", unit.name));
  builder_.has_rule = had_rule;
}

void Weights::GatherInto(const Unit& unit, Slice all) {
  if (unit.codes != nullptr) return GatherCodes(unit, all);
  const Slice rest = builder_.graph().Whole(unit.rounded != kNone ? unit.rounded : unit.master);
  const kernels::FormatRow* format = parameters_.GathersOf(unit);
  kernels::BlockAttrs attrs;
  Slice codes, scales;
  if (format != nullptr) {
    attrs = {.format = format->format, .block = std::gcd(format->block, unit.shard_elements)};
    codes = Message("codes", unit, DType::kU8, unit.elements);
    scales = Message("scales", unit, DType::kF32, unit.elements / attrs.block);
  }
  const auto gather = [&] {
    const Slice piece = OnDevice(unit, rest);
    if (format == nullptr) {
      builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard, piece, all,
                          absl::StrCat("gather ", unit.name));
      return;
    }
    const Slice own = Message("codes.own", unit, DType::kU8, unit.shard_elements);
    const Slice own_scales =
        Message("scales.own", unit, DType::kF32, unit.shard_elements / attrs.block);
    builder_.Compute(Op::kEncodeBlocks, attrs, {piece, own, own_scales, Slice()},
                     absl::StrCat("encode ", unit.name));
    builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard, own_scales, scales,
                        absl::StrCat("gather scales of ", unit.name));
    builder_.Collective(v1::ALL_GATHER, parallel_.groups.shard, own, codes,
                        absl::StrCat("gather ", unit.name));
  };
  const bool had_rule = std::exchange(builder_.has_rule, false);
  if (unit.tile || builder_.graph().TierOf(rest) != v1::DEVICE) {
    const FetchScope fetch(&builder_);
    gather();
  } else {
    gather();
  }
  if (format != nullptr)
    builder_.Compute(Op::kDecodeBlocks, attrs, {codes, scales, all},
                     absl::StrCat("decode ", unit.name));
  builder_.has_rule = had_rule;
}

Slice Weights::Message(const char* kind, const Unit& unit, DType dtype, int64_t elements) {
  const int layer = std::exchange(builder_.layer, kNone);  // the unit's name tells it
  const Slice message =
      builder_.NewValue(absl::StrCat(kind, ".", unit.name), v1::PARAMETER, dtype, {elements});
  builder_.layer = layer;
  return message;
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
  if (node.fetch != kNone) return false;
  const Compute* compute = node.compute();
  const bool encodes = compute != nullptr && compute->op == Op::kEncodeBlocks;
  const bool gathers = node.collective() != nullptr && node.collective()->kind == v1::ALL_GATHER;
  return (encodes || gathers) && graph.values[node.operands[0].value].cls == v1::PARAMETER &&
         graph.values[node.operands[1].value].lifetime == v1::STEP;
}

bool DecodesWeights(const Graph& graph, const Node& node) {
  const Compute* compute = node.compute();
  return compute != nullptr && compute->op == Op::kDecodeBlocks &&
         graph.values[node.operands[0].value].cls == v1::PARAMETER;
}

}  // namespace terrace::compiler
