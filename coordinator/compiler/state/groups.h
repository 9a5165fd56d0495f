// The grid of a job's ranks and the groups they communicate in, from the layout.
//
// Pure, deterministic and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/compiler/graph/graph.h"
#include "coordinator/compiler/pipeline/schedule.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/config.h"
#include "proto/program/grid.h"
#include "proto/v1/plan.pb.h"

namespace terrace::compiler {

// Indices in Graph::groups; kNone where the group would have one member.
struct Groups {
  int tensor = kNone;
  int tensor_block = kNone;  // ranks that hold copies of one key-value head
  int context = kNone;
  int data = kNone;   // all that contribute to the gradient of the same weights
  int shard = kNone;  // those that share sharded states
  // Of these, where codes of gradients are exchanged in two levels: the ranks of one block, and
  // those that have one place in their blocks.
  int near = kNone;
  int far = kNone;
  int replica = kNone;   // those that hold the same shard
  int model = kNone;     // those that together hold every distinct gradient element
  int totals = kNone;    // all whose loss differs: data, context and stages
  int tied = kNone;      // the stages that hold the tied embedding
  int forward = kNone;   // pipeline transfers of activations
  int backward = kNone;  // and of their gradients
};

// What the passes need to know of the layout, complete: every degree at least 1.
struct Parallel {
  v1::Grid grid;
  Groups groups;
  int zero = 0;
  bool sequence_parallel = false;
  bool ulysses = false;
  int tensor_block = 1;  // tensor-parallel ranks that share a key-value head

  int64_t tensor() const { return AxisSize(grid, v1::TENSOR); }
  int64_t context() const { return AxisSize(grid, v1::CONTEXT); }
  int64_t shards() const { return ShardCount(grid); }
  bool zigzag() const { return context() > 1 && !ulysses; }
};

// The layers of one model chunk.
struct ChunkRange {
  int begin = 0;
  int end = 0;
  bool first = false;  // begins with the embedding
  bool last = false;   // ends with the loss
};

ScheduleShape ShapeOf(const v1::Layout& layout);
// By model chunk.
std::vector<ChunkRange> SplitLayers(const v1::Layout& layout, int layers);

// Adds the groups to the graph.
Parallel AddGroups(const v1::Layout& layout, const ModelConfig& config, Graph* graph);

}  // namespace terrace::compiler
