// What the dimensions of a model allow: the one place that knows which combinations of tensor,
// pipeline, context and data parallelism, schedule, recompute, ZeRO and offload can be compiled.
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
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/layout/formats.h"
#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// The layout with what 0 and "" mean written out: degrees of 1, no recompute, schedule "1f1b",
// interleave 2 for "interleaved" and "zbv" and 1 otherwise, context type "ring", gradients reduced
// in f32, allocator "planned". With one rank to shard over, ZeRO is 0 and no shard size is left. A
// class of memory that `offload` does not mention stays on the device, except that gradients follow
// the optimizer to the host; an offload of nothing is left out, one of something has chunk_bytes.
// Weights are rounded where that takes no memory: with ZeRO, unless they rest off the device.
v1::Layout Completed(v1::Layout layout);

// INVALID_ARGUMENT with one line a problem. Fields of 0 and "" count as Completed() says; a layout
// without `ranks` is not held against them. How the batch divides is the planner's to check.
absl::Status CheckLayout(const v1::Layout& layout, const Model& model, const v1::JobSpec& spec);

// The farthest from the device that has a part; DEVICE when none has.
v1::Tier FarthestTier(const v1::TierShares& shares);
// Something rests off the device.
bool IsOffloaded(const v1::Layout& layout);
// "device", "host", "nvme".
std::string_view TierName(v1::Tier tier);

// How problems are worded: "layout.KEY: got X, must Y; try Z". `way_out` may be empty.
std::string LayoutProblem(std::string_view key, const std::string& got, const std::string& must,
                          const std::string& way_out);
// Of a value that is none of `names`.
std::string NameProblem(std::string_view key, const std::string& got,
                        const std::vector<std::string>& names);

// Of the schedules that have interleave 2 when none is given.
bool TwoChunksByDefault(std::string_view schedule);
// Of the schedules in which every forward pass of a stage comes before its first backward pass.
bool ForwardFirst(std::string_view schedule);
// Of the schedule in which all micro-batches go through a model chunk in one run: what its passes
// have in common is prefetched, and its gradients are complete, once a run.
bool InRuns(std::string_view schedule);
// Whether each gradient is used up as soon as it is final (compiler/reduction.h). Nothing may ask
// for the norm of all gradients before: neither clipping, nor a scaled loss, where a step is left
// out whose norm is not finite. With other schedules of several stages the last backward pass goes
// through one stage after the other, and updates between would delay each.
bool UpdatesAtOnce(const v1::Layout& layout, double clip_grad_norm);
// The parts of CheckLayout() that are about schedules and stages, and of Completed() and it that
// are about tiers: one line a problem.
std::vector<std::string> ScheduleProblems(const v1::Layout& layout, int64_t layers);
v1::Layout CompletedOffload(v1::Layout layout);
std::vector<std::string> OffloadProblems(const v1::Layout& layout);

// The axes of the ranks. Without ZeRO all data-parallel ranks are on the shard axis.
v1::Grid GridOf(const v1::Layout& layout);

// Layers of each chunk of the model in its order, pp x interleave of them: layout.stage_layers, or
// as even as possible with the longer chunks in the middle, since the first also has the embedding
// and the last the head. REQUIRES: CheckLayout is OK.
std::vector<int64_t> ChunkLayers(const v1::Layout& layout, int64_t layers);

// How many micro-batches of a step a program has instructions for: all of them, or as many as show
// how the step repeats itself, whose rest are iterations of a loop (compiler/roll.h).
int64_t CompiledMicroBatches(const v1::Layout& layout);
// After how many the order of passes repeats itself.
int64_t MicroBatchesAnIteration(const v1::Layout& layout);

// INVALID_ARGUMENT when a step of so many micro-batches passes, in the stage with the most layers,
// through more of them than a program may have, which is far fewer instructions than the compiler
// would say it of. REQUIRES: CheckLayout is OK.
absl::Status CheckLayerPasses(const v1::Layout& layout, int64_t layers, int64_t micro_batches);

// The stage that has a chunk: zbv goes down the stages and up again, the others go round.
int64_t StageOfChunk(const v1::Layout& layout, int64_t chunk);

}  // namespace terrace
