// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/sample_sizes.h"

#include "coordinator/planner/layout_rules.h"

namespace terrace {

SampleSizes SizesOf(const v1::Layout& layout) {
  if (CompiledMicroBatches(layout) < layout.micro_batches()) return {};  // a loop, whatever it has
  return WrittenOutSizes(layout);
}

SampleSizes WrittenOutSizes(const v1::Layout& layout) {
  const int64_t stages = layout.pipeline_parallel();
  // What a run of passes brings once, their number does not change.
  if (InRuns(layout.schedule())) return {};
  // Full, and in step with itself; one round of the order is one micro-batch, or of interleaved as
  // many as there are stages.
  SampleSizes sizes = {.shorter = 2, .longer = 3};
  if (layout.schedule() == "interleaved") {
    sizes = {.shorter = stages, .longer = 2 * stages};
  } else if (stages > 1 || layout.schedule() == "gpipe") {
    sizes.shorter = layout.schedule() == "1f1b" ? stages : 2 * stages;
    sizes.longer = sizes.shorter + 2;
  }
  const bool gains = layout.micro_batches() > sizes.shorter + sizes.longer;
  if (!gains) return {};
  return sizes;
}

int64_t LayerPasses(const v1::Layout& layout, int64_t layers) {
  const SampleSizes sizes = SizesOf(layout);
  return sizes.longer > 0 ? layers * (sizes.shorter + sizes.longer)
                          : LayerPassesOfStep(layout, layers);
}

}  // namespace terrace
