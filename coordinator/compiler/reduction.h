// From the gradients that the passes of a stage leave to those that the optimizer needs: summed
// over every rank that contributes, each exactly once, as soon as they are final.
//
// Without ZeRO buckets of gradients are all-reduced in place. With it each unit's gradient is
// reduce-scattered, so that a rank keeps only its shard: once a step (stage 1), or once a pass of a
// micro-batch (stage 2 and 3), when the shards of later passes are added to the first. Replicas of
// a shard (hierarchical sharding) and the stages that share a tied embedding sum last. With
// layout.communication_dtype bf16 what goes over the data-parallel links is rounded to bf16 before,
// and sums are kept in f32 after; the other sums stay f32.
//
// Pure and deterministic. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "coordinator/compiler/leave.h"
#include "coordinator/compiler/stage.h"

namespace terrace::compiler {

struct Reduction {
  std::map<int, int> shards;  // unit -> value, f32 [shard_elements]; with ZeRO
  std::map<int, int> homes;   // of gradients that rest off the device (leave.h), by outermost value
  // One partial sum of squares of this rank's summed gradients each, scaled so that their sum over
  // the group "model" counts every element once.
  Slice squares;
};

// Inserts the reductions and norms into the sequence, or appends them. REQUIRES: all passes are in
// it, nothing that follows them.
Reduction ReduceGradients(const StageContext& context, const GradientScopes& scopes,
                          int64_t bucket_bytes, Builder* builder);

}  // namespace terrace::compiler
