// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/recompute.h"

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/compiler/state/weights.h"

namespace terrace::compiler {
namespace {

using kernels::Epilogue;
using kernels::Op;

bool HasFusedGelu(const Node& node) {
  const Compute* compute = node.compute();
  return compute != nullptr && compute->op == Op::kMatmul &&
         std::get<kernels::MatmulAttrs>(compute->attrs).epilogue == Epilogue::kGelu;
}

// The operands that the op's backward rule reads the content of (autodiff.cc).
std::vector<int> ReadByRule(const Node& node) {
  if (!node.has_rule) return {};
  if (std::holds_alternative<RingAttention>(node.what)) return {0, 3, 4, 5, 6, 7};
  const Compute* compute = node.compute();
  if (compute == nullptr) return {};
  switch (compute->op) {
    case Op::kEmbedding:
      return {0, 4};
    case Op::kLayerNorm:
      return {0, 1, 4, 5};
    case Op::kRmsNorm:
      return {0, 1, 3};
    case Op::kMatmul: {
      std::vector<int> read;
      if (node.weight_gradient) read.push_back(0);
      if (node.input_gradient) read.push_back(1);
      if (HasFusedGelu(node)) read.push_back(5);
      return read;
    }
    case Op::kSwiglu:
      return {0, 1};
    case Op::kGelu:
      return {0};
    case Op::kRope:
    case Op::kDropout:
      return {1};
    case Op::kAttention:
      return {0, 1, 2, 3, 4, 5, 6};
    default:
      return {};
  }
}

// Norms over the hidden state; those over heads are followed by a rotation in place.
bool IsCheap(const Node& node) {
  if (HasFusedGelu(node)) return true;
  if (node.collective() != nullptr) return node.collective()->kind == v1::ALL_GATHER;
  const Compute* compute = node.compute();
  if (compute == nullptr) return false;
  if (compute->op == Op::kSwiglu || compute->op == Op::kGelu || compute->op == Op::kDropout)
    return true;
  const bool norm = compute->op == Op::kLayerNorm || compute->op == Op::kRmsNorm;
  return norm && node.operands[0].shape.dims == 2;
}

class Repeater {
 public:
  Repeater(const Segment& segment, PrefetchedAgain* prefetched, Builder* builder)
      : segment_(segment), prefetched_(prefetched), builder_(*builder), graph_(builder->graph()) {}

  std::vector<Node> Run() {
    const std::vector<bool> repeated = Choose();
    if (prefetched_ != nullptr) renamed_ = *prefetched_;
    for (size_t i = 0; i < segment_.nodes.size(); ++i) {
      if (!repeated[i]) continue;
      RenameWritten(segment_.nodes[i]);
      if (prefetched_ != nullptr && Prefetches(segment_.nodes[i]))
        NotePrefetched(segment_.nodes[i]);
    }
    builder_.phase = v1::RECOMPUTE;
    const size_t begin = builder_.nodes().size();
    std::vector<Node> seen;
    std::optional<int> layer;  // of what was repeated last
    for (size_t i = 0; i < segment_.nodes.size(); ++i) {
      Node node = segment_.nodes[i];
      for (Slice& slice : node.operands) slice = Renamed(slice);
      if (repeated[i]) {
        if (layer != node.layer && node.layer != kNone) builder_.Mark();
        layer = node.layer;
        builder_.Repeat(Again(node));
      }
      seen.push_back(std::move(node));
    }
    if (prefetched_ == nullptr) PrefetchTilesAgain(begin, &seen);
    return seen;
  }

 private:
  bool Prefetches(const Node& node) const {
    return node.fetch != kNone || GathersWeights(graph_, node) || DecodesWeights(graph_, node);
  }

  bool MayRepeat(const Node& node) const {
    if (Prefetches(node)) return true;
    if (std::holds_alternative<EnterTensorParallel>(node.what) ||
        std::holds_alternative<RingAttention>(node.what)) {
      return false;
    }
    switch (segment_.recompute) {
      case Recompute::kNone:
        return false;
      case Recompute::kSelective:
        return IsCheap(node);
      case Recompute::kAll:
        return true;
    }
    return false;
  }

  // Those whose results a backward rule reads, directly or through other repeated nodes.
  std::vector<bool> Choose() const {
    const std::vector<Node>& nodes = segment_.nodes;
    std::set<int> needed;
    for (const Node& node : nodes) {
      for (int k : ReadByRule(node)) {
        if (!node.operands[k].absent()) needed.insert(RootOf(node.operands[k]));
      }
    }
    std::vector<bool> repeated(nodes.size(), false);
    for (size_t i = nodes.size(); i-- > 0;) {
      if (!MayRepeat(nodes[i]) || !WritesAny(nodes[i], needed)) continue;
      repeated[i] = true;
      for (size_t k = 0; k < nodes[i].operands.size(); ++k) {
        if (Reads(nodes[i], static_cast<int>(k))) needed.insert(RootOf(nodes[i].operands[k]));
      }
    }
    return repeated;
  }

  bool WritesAny(const Node& node, const std::set<int>& values) const {
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (Writes(node, static_cast<int>(k)) && values.contains(RootOf(node.operands[k])))
        return true;
    }
    return false;
  }

  int RootOf(const Slice& slice) const { return graph_.Root(slice).value; }

  // A fused GELU is repeated alone, from the product that was kept; what it read need not be there.
  Node Again(Node node) {
    if (node.fetch != kNone) {
      const auto [it, is_new] = fetches_.try_emplace(node.fetch, graph_.fetches);
      if (is_new) ++graph_.fetches;
      node.fetch = it->second;
    }
    if (segment_.recompute == Recompute::kSelective && HasFusedGelu(node)) {
      node.what = Compute{Op::kGelu, kernels::ActivationAttrs{}};
      node.operands = {node.operands[5], node.operands[2]};
    }
    node.text += " again";
    return node;
  }

  void RenameWritten(const Node& node) {
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (!Writes(node, static_cast<int>(k))) continue;
      if (segment_.recompute == Recompute::kSelective && HasFusedGelu(node) && k == 5) continue;
      const int root = RootOf(node.operands[k]);
      if (renamed_.contains(root)) continue;
      Value value = graph_.values[root];
      value.name += ".again";
      renamed_[root] = graph_.Add(std::move(value));
    }
  }

  void NotePrefetched(const Node& node) {
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (!Writes(node, static_cast<int>(k))) continue;
      const int root = RootOf(node.operands[k]);
      prefetched_->emplace(root, renamed_.at(root));
    }
  }

  // Tiles that repeated products have used come once more for the backward rules: between the two
  // uses lie all other tiles of the layer. Where they come is PlaceFetches'.
  void PrefetchTilesAgain(size_t begin, std::vector<Node>* seen) {
    std::set<int> used;  // by what was repeated, from node `begin` on
    for (size_t i = begin; i < builder_.nodes().size(); ++i) {
      const Node& node = builder_.nodes()[i];
      if (node.fetch != kNone) continue;
      for (const Slice& slice : node.operands) {
        if (!slice.absent()) used.insert(RootOf(slice));
      }
    }
    std::set<int> twice;  // fetches, as numbered in the segment
    for (const Node& node : *seen) {
      if (node.fetch == kNone) continue;
      const int prefetched = RootOf(node.operands.back());
      if (graph_.values[prefetched].tile && used.contains(prefetched)) twice.insert(node.fetch);
    }
    renamed_.clear();
    fetches_.clear();
    const auto again = [&](const Node& node) { return twice.contains(node.fetch); };
    for (const Node& node : *seen) {
      if (again(node)) RenameWritten(node);
    }
    for (Node& node : *seen) {
      for (Slice& slice : node.operands) slice = Renamed(slice);
      if (again(node)) builder_.Repeat(Again(node));
    }
  }

  Slice Renamed(Slice slice) {
    if (!slice.absent()) slice.value = RenamedValue(slice.value);
    return slice;
  }

  int RenamedValue(int value) {
    const auto it = renamed_.find(value);
    if (it != renamed_.end()) return it->second;
    const int outer = graph_.values[value].inside;
    if (outer == kNone) return value;
    const int new_outer = RenamedValue(outer);
    if (new_outer == outer) return value;
    Value copy = graph_.values[value];
    copy.inside = new_outer;
    return renamed_[value] = graph_.Add(std::move(copy));
  }

  const Segment& segment_;
  PrefetchedAgain* const prefetched_;
  Builder& builder_;
  Graph& graph_;
  std::map<int, int> renamed_;
  std::map<int, int> fetches_;  // new numbers
};

Recompute ParseLayerPolicy(const std::string& name) {
  if (name == "selective") return Recompute::kSelective;
  return name == "block" ? Recompute::kAll : Recompute::kNone;
}

// Layers that keep one input together; 0 when each is for itself.
int GroupSize(const v1::Layout& layout, int layers) {
  if (layout.recompute() == "full") return layers;
  if (layout.recompute() == "sqrt") return static_cast<int>(std::ceil(std::sqrt(layers)));
  if (layout.recompute() == "every") return static_cast<int>(layout.recompute_every());
  return 1;
}

}  // namespace

std::vector<SegmentPlan> PlanSegments(const v1::Layout& layout, const ChunkRange& chunk,
                                      int first_trained) {
  std::vector<SegmentPlan> plan;
  const bool grouped =
      layout.recompute() == "full" || layout.recompute() == "sqrt" || layout.recompute() == "every";
  const int size = std::max(1, GroupSize(layout, chunk.end - chunk.begin));
  for (int layer = chunk.begin; layer < chunk.end;) {
    if (!layout.recompute_layers().empty()) {
      plan.push_back({layer, layer + 1, ParseLayerPolicy(layout.recompute_layers(layer))});
    } else if (grouped) {
      const int end = layer < first_trained ? std::min(chunk.end, first_trained) : chunk.end;
      plan.push_back({layer, std::min(layer + size, end), Recompute::kAll});
    } else {
      plan.push_back({layer, layer + 1, ParseLayerPolicy(layout.recompute())});
    }
    layer = plan.back().end;
  }
  return plan;
}

std::vector<Node> Repeat(const Segment& segment, PrefetchedAgain* prefetched, Builder* builder) {
  return Repeater(segment, prefetched, builder).Run();
}

}  // namespace terrace::compiler
