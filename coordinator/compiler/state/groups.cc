// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/groups.h"

#include <algorithm>
#include <string>
#include <utility>

namespace terrace::compiler {
namespace {

uint32_t AtLeastOne(uint32_t size) { return std::max(1u, size); }

// kNone when the group would have one member. Axes of one rank are left out.
int Add(const std::string& name, const v1::Grid& grid, const std::vector<v1::Axis>& axes,
        Graph* graph) {
  v1::Group group;
  group.set_name(name);
  for (v1::Axis axis : axes) {
    if (AxisSize(grid, axis) > 1) group.add_axes(axis);
  }
  if (group.axes().empty()) return kNone;
  graph->groups.push_back(std::move(group));
  return static_cast<int>(graph->groups.size()) - 1;
}

int AddTied(const ModelConfig& config, const ScheduleShape& shape, const v1::Grid& grid,
            Graph* graph) {
  const StageChunk last = StageChunkOf(shape, shape.stages * shape.chunks - 1);
  if (!config.tied_embeddings || last.stage == 0) return kNone;
  const int group = Add("tied", grid, {v1::PIPELINE}, graph);
  graph->groups[group].add_stages(0);
  graph->groups[group].add_stages(last.stage);
  return group;
}

}  // namespace

ScheduleShape ShapeOf(const v1::Layout& layout) {
  return {.name = layout.schedule().empty() ? "1f1b" : layout.schedule(),
          .stages = static_cast<int>(AtLeastOne(layout.pipeline_parallel())),
          .chunks = static_cast<int>(AtLeastOne(layout.interleave())),
          .micro_batches = static_cast<int>(layout.micro_batches())};
}

std::vector<ChunkRange> SplitLayers(const v1::Layout& layout, int layers) {
  const std::vector<int64_t> counts = ChunkLayers(layout, layers);
  std::vector<ChunkRange> split;
  int begin = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int end = begin + static_cast<int>(counts[i]);
    split.push_back({begin, end, i == 0, i + 1 == counts.size()});
    begin = end;
  }
  return split;
}

Parallel AddGroups(const v1::Layout& layout, const ModelConfig& config, Graph* graph) {
  using v1::CONTEXT, v1::DATA_REPLICA, v1::DATA_SHARD, v1::PIPELINE, v1::TENSOR;
  Parallel parallel = {.grid = GridOf(layout)};
  const v1::Grid& grid = parallel.grid;
  parallel.zero = parallel.shards() > 1 ? static_cast<int>(layout.zero_stage()) : 0;
  parallel.sequence_parallel = layout.sequence_parallel() && parallel.tensor() > 1;
  parallel.ulysses = layout.context_type() == "ulysses";
  parallel.tensor_block =
      static_cast<int>(std::max<int64_t>(1, parallel.tensor() / config.kv_heads));
  Groups& groups = parallel.groups;
  groups.tensor = Add("tensor", grid, {TENSOR}, graph);
  if (parallel.tensor_block > 1) {
    groups.tensor_block = Add("tensor_block", grid, {TENSOR}, graph);
    graph->groups[groups.tensor_block].set_tensor_block(parallel.tensor_block);
  }
  groups.context = Add("context", grid, {CONTEXT}, graph);
  if (parallel.zero == 0) {
    groups.data = Add("data", grid, {CONTEXT, DATA_SHARD, DATA_REPLICA}, graph);
    groups.model = Add("model", grid, {TENSOR, PIPELINE}, graph);
  } else {
    groups.shard = Add("shard", grid, {CONTEXT, DATA_SHARD}, graph);
    if (const uint32_t block = layout.reduce_block(); IsReduceBlock(layout, block)) {
      groups.near = Add("near", grid, {CONTEXT, DATA_SHARD}, graph);
      graph->groups[groups.near].set_shard_block(block);
      groups.far = Add("far", grid, {DATA_SHARD}, graph);
      graph->groups[groups.far].set_shard_stride(block);
    }
    groups.replica = Add("replica", grid, {DATA_REPLICA}, graph);
    groups.model = Add("model", grid, {TENSOR, CONTEXT, DATA_SHARD, PIPELINE}, graph);
  }
  groups.totals = Add("totals", grid, {CONTEXT, DATA_SHARD, DATA_REPLICA, PIPELINE}, graph);
  if (AxisSize(grid, PIPELINE) > 1) {
    groups.tied = AddTied(config, ShapeOf(layout), grid, graph);
    groups.forward = Add("pipeline_forward", grid, {PIPELINE}, graph);
    groups.backward = Add("pipeline_backward", grid, {PIPELINE}, graph);
  }
  return parallel;
}

}  // namespace terrace::compiler
