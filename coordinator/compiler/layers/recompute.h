// Decides which values of a forward pass are kept for the backward pass; recomputes the others.
//
// A chunk's forward pass is recorded in segments of one or more layers. Before a segment is
// differentiated, the nodes whose results were not kept are repeated, into new values, and the
// backward rules see the segment with those. Repeating needs no support from any op: kernels are
// deterministic, so recomputation changes no bit. A segment's last product is never repeated, since
// nothing in its own backward pass reads it.
//
//   none       everything is kept
//   selective  norms and activation functions are recomputed from their inputs, and with
//              sequence parallelism gathered again (Korthikanti et al. 2022, arXiv 2205.05198,
//              section 5, without attention, which flash attention recomputes itself)
//   block      each layer keeps its input only
//   every, sqrt, full  groups of k, about sqrt(L), or all layers of a chunk keep their first input
//              only (Chen et al. 2016, arXiv 1604.06174)
//
// Weights that are prefetched for a use, gathered (ZeRO-3) or from another tier, are always
// prefetched again: once a pass, or once for all micro-batches that pass a chunk one after the
// other.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/compiler/graph/builder.h"
#include "coordinator/compiler/state/groups.h"
#include "proto/v1/plan.pb.h"

namespace terrace::compiler {

enum class Recompute { kNone, kSelective, kAll };

// Layers [begin, end) of the model whose activations are treated together.
struct SegmentPlan {
  int begin = 0;
  int end = 0;
  Recompute recompute = Recompute::kNone;
};
// The segments of a chunk, in order. One begins at layer `first_trained`, below which nothing is
// trained: what has no backward pass is not recomputed.
std::vector<SegmentPlan> PlanSegments(const v1::Layout& layout, const ChunkRange& chunk,
                                      int first_trained = kNone);

struct Segment {
  Recompute recompute = Recompute::kNone;
  std::vector<Node> nodes;  // as recorded
};

// Weights as the forward passes over a chunk prefetched them -> as its backward passes do: values.
using PrefetchedAgain = std::map<int, int>;

// Appends what must be recomputed and returns the segment's nodes as its backward rules should
// see them. `prefetched`, unless null: what earlier segments prefetched is there, and what this one
// prefetches is added to it.
std::vector<Node> Repeat(const Segment& segment, PrefetchedAgain* prefetched, Builder* builder);

}  // namespace terrace::compiler
