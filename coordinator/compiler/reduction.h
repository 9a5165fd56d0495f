// From the gradients that the passes of a stage leave to those that the optimizer needs: summed
// over every rank that contributes, each exactly once, as soon as they are final.
//
// Without ZeRO buckets of gradients are all-reduced in place. With it each unit's gradient is
// reduce-scattered, so that a rank keeps only its shard: once a step (stage 1), or once a pass of a
// micro-batch (stage 2 and 3), when the shards of later passes are added to the first. That of a
// unit that every rank keeps (Unit::kept) is all-reduced as often. Replicas of
// a shard (hierarchical sharding) and the stages that share a tied embedding sum last. With
// layout.reduce_format bf16 what goes over the data-parallel links is rounded to bf16 before, and
// sums are kept in layout.gradient_format after; with int8, int4 or fp8 gradients of matrices are
// sent in codes (coded_sum.h). All other sums are in layout.gradient_format.
//
// Where updates come at once (UpdatesAtOnce in layout/rules.h) a gradient is used up as
// soon as it is final and the step has no more use for its weights, and its memory is free: two
// layers behind what ranks had to sum, so that no computation waits for the link. LOMO (Lv et al.
// 2023, arXiv 2306.09782) does so for SGD. What stages sum together is left until the passes have
// ended.
//
// Pure and deterministic. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/compiler/stage.h"
#include "coordinator/compiler/tiers/offload.h"

namespace terrace::compiler {

// How gradients are used up.
struct AtOnce {
  // Values of the weights that the optimizer changes with a gradient: those of a bucket, or with
  // ZeRO a unit's shard.
  std::function<std::vector<int>(int gradient, int unit)> weights;
  int total = kNone;  // value that every update reads
  // Appends the update, for which the gradient's partial sum of squares is there.
  std::function<void(int gradient, int unit, Slice square)> update;
  // Nodes that all updates need. They go behind LOAD_SCHEDULE once every update was appended.
  const std::vector<Node>* at_start = nullptr;
};

struct Reduction {
  // unit -> value [shard_elements], or all its elements where every rank keeps it; with ZeRO
  std::map<int, int> shards;
  std::map<int, int>
      homes;              // of gradients that rest off the device (offload.h), by outermost value
  std::set<int> used_up;  // outermost values
  // One partial sum of squares of this rank's summed gradients each, scaled so that their sum over
  // the group "model" counts every element once.
  Slice squares;
};

// Inserts the reductions and norms into the sequence, or appends them. `at_once`: null where the
// optimizer waits for the whole gradient. REQUIRES: all passes are in the sequence, and nothing
// that follows them.
Reduction ReduceGradients(const StageContext& context, const GradientScopes& scopes,
                          int64_t bucket_bytes, const AtOnce* at_once, Builder* builder);

}  // namespace terrace::compiler
