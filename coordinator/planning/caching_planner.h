// A planner that makes each plan once: of jobs that differ in nothing that a plan depends on, the
// first is planned, those that come meanwhile wait for it, and later ones get its answer again.
// Planning is a pure function of spec and budget, so the answers are the same, but for the name of
// the first job in the programs, which is shown to nobody (ListWork.job).
//
// What was refused is not kept: the text of a refusal names its job. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/planning/planner.h"

namespace terrace {

// Of the answers that are kept; the ones used last stay.
inline constexpr size_t kPlanBytesKept = size_t{64} << 20;

class CachingPlanner final : public Planner {
 public:
  // `planner` is borrowed and does the work.
  explicit CachingPlanner(Planner& planner, size_t bytes_kept = kPlanBytesKept)
      : planner_(planner), bytes_kept_(bytes_kept) {}

  void Start(Work work) override;
  void Stop() override { planner_.Stop(); }

 private:
  struct Kept {
    std::string key;
    v1::PlannerAnswer answer;
    size_t bytes = 0;
  };

  // Has the first of `same`, which all have that key, planned; the others wait for it.
  void Lead(const std::string& key, std::vector<Work> same);
  void Finish(const std::string& key, Work leader, absl::StatusOr<v1::PlannerAnswer> answer);
  void Keep(const std::string& key, const v1::PlannerAnswer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Planner& planner_;
  const size_t bytes_kept_;
  absl::Mutex mutex_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // the last used first
  std::map<std::string, std::list<Kept>::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // By key, those that wait for a plan that is being made.
  std::map<std::string, std::vector<Work>> under_way_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
