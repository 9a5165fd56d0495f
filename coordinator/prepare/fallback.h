// Fallbacks: layouts that a job goes on with whose memory ran out because of bytes that no plan
// reserved.
//
// From the layout that ran out: a smaller micro-batch, more recompute, states in the host's memory,
// states on NVMe. Each fallback keeps what those before it gave up, so that the list ends and
// nothing is tried twice. The first that fits, with what was learned to lie outside the arenas,
// is compiled. The degrees of parallelism stay, and so does whatever the spec pins.
//
// Pure and thread-safe: the same in, the same out.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/prepare.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct Fallback {
  std::string name;  // "micro_batch", "recompute", "host", "nvme"
  v1::Layout layout;
};
// In the order in which they are tried.
std::vector<Fallback> FallbacksFrom(const v1::JobSpec& spec, const v1::Layout& layout);

struct ChosenFallback {
  std::string fallback;  // its name
  std::string change;    // "layout.micro_batch 4 instead of 8"
  Prepared prepared;
};
// `plan` is the one that ran out, budget.external_bytes what was learned. RESOURCE_EXHAUSTED when
// no fallback fits: the message has the limit, the bytes and the pinned keys that are in the way.
absl::StatusOr<ChosenFallback> FindFallback(const v1::JobSpec& spec, const Budget& budget,
                                            const v1::Plan& plan);

// Prepare() with what was learned; where nothing fits with it, without: a figure from another job
// makes room, it does not refuse.
absl::StatusOr<Prepared> PrepareWithLearned(const v1::JobSpec& spec, const Budget& budget);

}  // namespace terrace
