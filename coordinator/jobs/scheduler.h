// Who runs where: gang placement, all or nothing, higher priority first and then first come, first
// served.
//
// A job that must wait for devices keeps the workers that match it from the jobs behind it, so that
// a stream of small jobs never starves a large one; a job that no worker could hold keeps nothing.
// Pure and deterministic. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/hardware/budget.h"
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
  std::set<uint32_t> used;     // devices that hold ranks or are promised
  std::string problem;         // why it takes no part in jobs of several workers; empty: it does
  bool ready = true;           // false: it is silent at the moment and takes no ranks
  bool drained = false;        // it takes no ranks, and no plan counts on it
};

// What the planner may count on: the most workers the spec allows among those that could hold their
// share of it were they free. NOT_FOUND when they are too few, with a sentence that names the
// numbers.
absl::StatusOr<Budget> BudgetFor(const v1::JobSpec& spec, absl::Span<const NodeView> nodes);

struct Decision {
  std::string job;
  v1::Placement placement;  // without ranks: the job waits, for `reason`
  v1::Reason reason = v1::REASON_NONE;
  std::string message;
};
// One decision for each of `waiting` (planned jobs, in any order), in the order in which they were
// considered. `nodes` are those that take ranks now. Jobs that need the same are told the same, so
// that thousands behind a full cluster cost little.
std::vector<Decision> Schedule(absl::Span<const v1::Job* const> waiting,
                               absl::Span<const NodeView> nodes);

}  // namespace terrace
