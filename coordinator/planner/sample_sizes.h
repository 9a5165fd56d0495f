// How many micro-batches of a layout are compiled to compare it with others.
//
// A step that is a loop is compiled as it is, of whatever length. Of a long one that is written out
// two short steps, of which one has a few micro-batches more, tell bytes and time: once a pipeline
// is full it repeats itself, and gpipe holds of each micro-batch as much as of the one before.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/planner/layout_rules.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Micro-batches of the two steps that are compiled for a layout of many; both 0: it is compiled
// whole.
struct SampleSizes {
  int64_t shorter = 0;
  int64_t longer = 0;
};
SampleSizes SizesOf(const v1::Layout& layout);
// The same, of a layout whose step turned out to repeat itself in no loop.
SampleSizes WrittenOutSizes(const v1::Layout& layout);

// Passes of a layer that comparing the layout compiles, of all stages: what its time goes with.
int64_t LayerPasses(const v1::Layout& layout, int64_t layers);
// Of the program of the whole step.
inline int64_t LayerPassesOfStep(const v1::Layout& layout, int64_t layers) {
  return layers * CompiledMicroBatches(layout);
}

// Layouts of more are compared only where none of fewer fits: to compile one takes as long as all
// others together. Llama 3 405B in 16 micro-batches has 2,016.
inline constexpr int64_t kShortLayerPasses = 2'500;
// Of one that is compiled only to show that nothing fits: twice as many, for it is the only one.
inline constexpr int64_t kShownLayerPasses = 2 * kShortLayerPasses;

}  // namespace terrace
