// Jobs and workers as the queue (coordinator/queue/schedule.h) takes them, its decisions as
// placements, and what the planner may count on.
//
// Pure and deterministic: the time is an argument. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/hardware/budget.h"
#include "coordinator/queue/schedule.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct NodeView {
  std::string name;
  uint32_t devices = 0;
  int64_t device_memory_bytes = 0;  // each; 0: not limited
  uint32_t threads_per_device = 1;
  bool cuda = false;  // its devices are GPUs
  // Shared: thousands of nodes are looked at together, and profiles are long. Never null.
  std::shared_ptr<const v1::HardwareProfile> profile = std::make_shared<v1::HardwareProfile>();
  int64_t external_bytes = 0;  // learned here of jobs of this shape, outside the arenas; 0: nothing
  // Devices that hold ranks or are promised, and until when, as of QueueNode.
  std::map<uint32_t, int64_t> used;
  std::string problem;   // why it takes no part in jobs of several workers; empty: it does
  bool ready = true;     // false: it is silent at the moment and takes no ranks
  bool drained = false;  // it takes no ranks, and no plan counts on it
};

// What the planner may count on: the most workers the spec allows among those that could hold their
// share of it were they free. NOT_FOUND when they are too few, with a sentence that names the
// numbers.
absl::StatusOr<Budget> BudgetFor(const v1::JobSpec& spec, absl::Span<const NodeView> nodes);

// `node` as the queue sees it.
QueueNode QueueNodeOf(const NodeView& node);
// A planned job that waits. `job` is borrowed for as long as the result is used.
QueuedJob QueuedJobOf(const v1::Job& job);
// What all ranks of a planned job hold, by the plan.
TierBytes BytesOf(const v1::Plan& plan);
// Equal where two budgets ask for the same plan.
std::string BudgetText(const Budget& budget);

// It may have another number of workers than it was planned for: resources.nodes is MIN:MAX, and no
// layout.dp pins the number.
bool IsElastic(const v1::JobSpec& spec);

// `nodes` are those that were scheduled for.
v1::Placement PlacementOf(const QueueDecision& decision, absl::Span<const QueueNode> nodes);
v1::Reason ReasonOf(WaitFor what);

// When a job that holds devices is planned to give them back: by its steps that are left and its
// time limit, or by its present step where it was asked to stop. kUnknownMs: nobody can say.
int64_t PlannedEndMs(const v1::Job& job, int64_t now_ms);

}  // namespace terrace
