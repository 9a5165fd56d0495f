// Whoever plans for the coordinator: reads specs, finds layouts, compiles and lists programs, and
// touches nothing of the coordinator meanwhile.
//
// process_planner.h does it in processes of its own; tests have one that does it in theirs.
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "coordinator/hardware/budget.h"
#include "proto/v1/planning.pb.h"

namespace terrace {

// Beyond so many that wait, no new spec is read and no program listed.
inline constexpr size_t kPlansQueuedMax = 256;

v1::PlannerBudget ToMessage(const Budget& budget);
Budget FromMessage(const v1::PlannerBudget& message);

class Planner {
 public:
  struct Work {
    v1::PlannerRequest request;
    // Layers of the model, where that is known: the smaller go first.
    int64_t size = 0;
    // Asked on any thread until `done` is called: nobody waits for the answer any more. May be
    // null.
    std::function<bool()> abandoned;
    // Told how far the work is, on any thread, before `done`; only of an evaluation. May be null.
    std::function<void(const v1::EvaluationProgress&)> tell = nullptr;
    // Called once, on any thread; it must not take long. RESOURCE_EXHAUSTED: kPlansQueuedMax wait
    // already, or it needed more time or memory than it may have. ABORTED: its process died.
    // UNAVAILABLE: the coordinator stops. CANCELLED: it was abandoned. All else is the work's own.
    std::function<void(absl::StatusOr<v1::PlannerAnswer>)> done;
  };

  virtual ~Planner() = default;
  virtual void Start(Work work) = 0;
  // Ends what is under way and what waits; returns when all are told.
  virtual void Stop() = 0;
};

}  // namespace terrace
