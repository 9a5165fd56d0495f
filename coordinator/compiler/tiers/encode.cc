// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/encode.h"

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/tiers/live_ranges.h"

namespace terrace::compiler {
namespace {

using kernels::DType;
using kernels::Op;

// Elements that share a scale: no block holds elements of two rows.
int64_t BlockOf(const kernels::FormatRow& format, const Value& value) {
  return std::gcd(format.block, value.shape.back());
}

// How many ranges are of the forward pass; the rest of another pass, which finds the value decoded.
// A value that another stage sends may be there long before it is used.
size_t ForwardRanges(const std::vector<LiveRange>& ranges, const std::vector<Node>& nodes) {
  size_t count = 0;
  while (count < ranges.size() && nodes[ranges[count].nodes[0]].phase == v1::FORWARD) ++count;
  return count;
}

// Written by the forward pass, whole, and used again by a later pass.
bool Waits(const Value& value, const std::vector<LiveRange>& ranges, size_t forward) {
  if (value.cls != v1::ACTIVATION || value.tier != v1::DEVICE) return false;
  if (forward == 0 || forward == ranges.size()) return false;
  std::vector<Elements> written;
  for (size_t b = 0; b < ranges.size(); ++b) {
    // A later range would have to see what a range between the first and the last has changed.
    if (b >= forward && b + 1 < ranges.size() && !ranges[b].written.empty()) return false;
    if (b < forward)
      written.insert(written.end(), ranges[b].written.begin(), ranges[b].written.end());
  }
  return Merged(std::move(written)) == std::vector<Elements>{{0, value.elements()}};
}

class Encoder {
 public:
  explicit Encoder(Builder* builder)
      : builder_(*builder), graph_(builder->graph()), edits_(builder) {}

  void Encode(int value, const kernels::BlockAttrs& attrs, const std::vector<LiveRange>& ranges,
              size_t forward) {
    const std::string name = ReplaceMicroBatch(graph_.values[value].name, "");
    const int64_t elements = graph_.values[value].elements();
    const Slice codes = Beside(value, ".codes", DType::kU8, elements);
    const Slice scales =
        Beside(value, ".scales", DType::kF32, (elements + attrs.block - 1) / attrs.block);
    const size_t last = ranges[forward - 1].nodes.back();
    edits_.After(last, [&] {
      Compute(last, Op::kEncodeBlocks, attrs, {Flat(graph_.Whole(value)), codes, scales, Slice()},
              "encode " + name);
    });
    for (size_t b = forward; b < ranges.size(); ++b) {
      const int here = edits_.Again(value, ranges[b], b);
      const size_t first = ranges[b].nodes.front();
      edits_.Before(first, [&] {
        Compute(first, Op::kDecodeBlocks, attrs, {codes, scales, Flat(graph_.Whole(here))},
                "decode " + name);
      });
    }
  }

  void Apply() { edits_.Apply(); }

 private:
  // In the layer and the micro-batch of a node.
  void Compute(size_t node, Op op, const kernels::BlockAttrs& attrs, std::vector<Slice> operands,
               std::string text) {
    builder_.layer = builder_.nodes()[node].layer;
    builder_.micro_batch = builder_.nodes()[node].micro_batch;
    builder_.Compute(op, attrs, std::move(operands), std::move(text));
    builder_.layer = builder_.micro_batch = kNone;
  }

  Slice Beside(int value, const char* suffix, DType dtype, int64_t elements) {
    Value beside = graph_.values[value];
    beside.name += suffix;
    beside.dtype = dtype;
    beside.shape = {elements};
    return graph_.Whole(graph_.Add(std::move(beside)));
  }

  Builder& builder_;
  Graph& graph_;
  LiveRangeEdits edits_;
};

}  // namespace

void EncodeActivations(const kernels::FormatRow& format, Builder* builder) {
  Encoder encoder(builder);
  const Graph& graph = builder->graph();
  for (const auto& [index, ranges] : FindLiveRanges(graph, builder->nodes())) {
    const Value value = graph.values[index];
    if (value.dtype != DType::kBF16 && value.dtype != DType::kF16) continue;
    const size_t forward = ForwardRanges(ranges, builder->nodes());
    if (!Waits(value, ranges, forward)) continue;
    const int64_t block = BlockOf(format, value);
    if (block < kernels::kLeastBlock) continue;
    encoder.Encode(index, {.format = format.format, .block = block}, ranges, forward);
  }
  encoder.Apply();
}

}  // namespace terrace::compiler
