// Where the ranks and the layers of a layout are: the grid, the model chunks, their stages.
//
// In: a layout, complete or not. Out: positions. What may be asked for is rules.cc's.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

// A step is unrolled: a program that is much longer can neither be streamed nor checked.
constexpr int64_t kLayerPassesMax = 65'536;

uint32_t AtLeastOne(uint32_t degree) { return std::max<uint32_t>(1, degree); }

}  // namespace

v1::Grid GridOf(const v1::Layout& layout) {
  const uint32_t dp = AtLeastOne(layout.data_parallel());
  const bool hierarchical = layout.zero_stage() > 0 && layout.shard_size() > 0;
  v1::Grid grid;
  grid.set_tensor(AtLeastOne(layout.tensor_parallel()));
  grid.set_context(AtLeastOne(layout.context_parallel()));
  grid.set_data_shard(hierarchical ? layout.shard_size() : dp);
  grid.set_data_replica(dp / grid.data_shard());
  grid.set_pipeline(AtLeastOne(layout.pipeline_parallel()));
  return grid;
}

std::vector<int64_t> ChunkLayers(const v1::Layout& layout, int64_t layers) {
  if (!layout.stage_layers().empty()) {
    return {layout.stage_layers().begin(), layout.stage_layers().end()};
  }
  const int64_t chunks =
      int64_t{AtLeastOne(layout.pipeline_parallel())} * AtLeastOne(layout.interleave());
  std::vector<int64_t> split(chunks, layers / chunks);
  const int64_t longer = layers % chunks;
  const int64_t first = (chunks - longer) / 2;
  for (int64_t chunk = first; chunk < first + longer; ++chunk) ++split[chunk];
  return split;
}

int64_t StageOfChunk(const v1::Layout& layout, int64_t chunk) {
  const int64_t stages = AtLeastOne(layout.pipeline_parallel());
  if (layout.schedule() == "zbv" && chunk >= stages) return 2 * stages - 1 - chunk;
  return chunk % stages;
}

int64_t MicroBatchesAnIteration(const v1::Layout& layout) {
  return layout.schedule() == "interleaved" ? AtLeastOne(layout.pipeline_parallel()) : 1;
}

int64_t CompiledMicroBatches(const v1::Layout& layout) {
  // A step of few micro-batches stays straight: a GPU launches it as one graph. Buffers that have
  // one address in all iterations are packed worse, by up to 6 %, where passes of several kinds or
  // chunks take turns.
  const bool varied = layout.schedule() == "zb-h1" || AtLeastOne(layout.interleave()) > 1;
  const int64_t straight = varied ? 256 : 16;
  // The first and the last iteration differ from the others, and those beside them wait for what
  // these do; three must be alike.
  constexpr int64_t kIterations = 8;
  const int64_t stages = AtLeastOne(layout.pipeline_parallel());
  // Those that are begun before the order of passes is in step: as many as the first stage runs
  // ahead, and where weight gradients are put off those for which they are. As many again: a
  // backward pass waits for what was loaded for its forward pass, that many iterations before.
  int64_t ahead = 2 * (stages - 1);
  if (layout.schedule() == "interleaved") ahead = stages * (AtLeastOne(layout.interleave()) + 1);
  if (layout.schedule() == "zb-h1") ahead = 2 * stages;
  if (layout.schedule() == "zbv") ahead = 4 * stages;
  const int64_t shown = ahead + kIterations * MicroBatchesAnIteration(layout);
  // What waits for the backward passes grows with every iteration where all forward passes come
  // first; an allocator at run time places the values of a straight list.
  const bool planned = layout.allocator().empty() || layout.allocator() == "planned";
  const bool repeats = planned && !ForwardFirst(layout.schedule());
  const bool is_long = layout.micro_batches() > std::max(straight, shown + shown / 2);
  return repeats && is_long ? shown : layout.micro_batches();
}

absl::Status CheckLayerPasses(const v1::Layout& layout, int64_t layers, int64_t micro_batches) {
  const std::vector<int64_t> chunks = ChunkLayers(layout, layers);
  std::vector<int64_t> of_stage(AtLeastOne(layout.pipeline_parallel()));
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(chunks.size()); ++chunk) {
    of_stage[StageOfChunk(layout, chunk)] += chunks[chunk];
  }
  const int64_t passes = *std::max_element(of_stage.begin(), of_stage.end()) * micro_batches;
  if (passes <= kLayerPassesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layout: ", passes, " layer passes in one step of a stage, must be at most ", kLayerPassesMax,
      "; raise layout.micro_batch, layout.dp or layout.pp, or lower train.global_batch"));
}

}  // namespace terrace
