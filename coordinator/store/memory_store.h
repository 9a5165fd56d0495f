// A Store in memory: for tests and simulations. Nothing outlives it. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/store.h"

namespace terrace {

class MemoryStore final : public Store {
 public:
  absl::Status Commit(const Transaction& transaction) override;
  absl::StatusOr<v1::Job> GetJob(std::string_view id) const override;
  absl::StatusOr<std::vector<v1::Job>> ListJobs() const override;
  absl::StatusOr<std::vector<v1::Job>> ListActiveJobs() const override;
  absl::StatusOr<std::vector<v1::JobSummary>> ListEnded(const JobFilter& filter, int64_t before,
                                                        int64_t limit) const override;
  absl::StatusOr<std::map<v1::JobState, int64_t>> CountEnded(
      const JobFilter& filter) const override;
  absl::StatusOr<std::string> GetProgram(std::string_view sha256) const override;
  absl::StatusOr<std::vector<v1::JobEvent>> Events(std::string_view job, int64_t after_sequence,
                                                   int64_t limit) const override;
  absl::StatusOr<int64_t> LastSequence(std::string_view job) const override;
  absl::StatusOr<std::string> GetHistory(std::string_view job) const override;
  absl::StatusOr<std::vector<LearnedMemory>> Learned() const override;
  absl::StatusOr<std::vector<v1::Drain>> Drains() const override;
  absl::StatusOr<std::vector<OwnerUsage>> Usages() const override;
  absl::StatusOr<int64_t> LastNumber() const override;

 private:
  using WorkerAndShape = std::pair<std::string, std::string>;

  mutable absl::Mutex mutex_;
  std::map<std::string, v1::Job, std::less<>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> order_ ABSL_GUARDED_BY(mutex_);           // ids by submission
  std::map<int64_t, v1::JobSummary> ended_ ABSL_GUARDED_BY(mutex_);  // by number
  std::set<std::string> ended_ids_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string, std::less<>> programs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<v1::JobEvent>, std::less<>> events_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string, std::less<>> histories_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::Drain> drains_ ABSL_GUARDED_BY(mutex_);    // by worker
  std::map<std::string, OwnerUsage> usages_ ABSL_GUARDED_BY(mutex_);   // by owner
  std::map<WorkerAndShape, int64_t> learned_ ABSL_GUARDED_BY(mutex_);  // bytes
};

}  // namespace terrace
