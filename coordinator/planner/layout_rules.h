// What the dimensions of a model allow: the one place that knows which combinations of tensor,
// pipeline, context and data parallelism, schedule, recompute and ZeRO can be compiled.
//
// In: a layout, chosen or pinned. Out: nothing, or every problem with the dimension that is in the
// way and the nearest value that works. The planner asks before it proposes, the compiler before it
// compiles.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// The layout with what 0 and "" mean written out: degrees of 1, no recompute, schedule "1f1b",
// interleave 2 for "interleaved" and "zbv" and 1 otherwise, context type "ring", gradients reduced
// in f32. With one rank to shard over, ZeRO is 0 and no shard size is left.
v1::Layout Completed(v1::Layout layout);

// INVALID_ARGUMENT with one line a problem. Fields of 0 and "" count as Completed() says; a layout
// without `ranks` is not held against them. How the batch divides is the planner's to check.
absl::Status CheckLayout(const v1::Layout& layout, const Model& model, const v1::JobSpec& spec);

// The axes of the ranks. Without ZeRO all data-parallel ranks are on the shard axis.
v1::Grid GridOf(const v1::Layout& layout);

// Layers of each chunk of the model in its order, pp x interleave of them: layout.stage_layers, or
// as even as possible with the longer chunks in the middle, since the first also has the embedding
// and the last the head. REQUIRES: CheckLayout is OK.
std::vector<int64_t> ChunkLayers(const v1::Layout& layout, int64_t layers);

}  // namespace terrace
