// A store in memory whose commits fail while a test says so. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/store/memory_store.h"

namespace terrace {

class FailingStore final : public Store {
 public:
  bool full = false;        // commits fail as on a full disk
  bool unreadable = false;  // jobs cannot be read
  int commits = 0;          // so far that did not fail
  int jobs_written = 0;     // by these

  absl::Status Commit(const Transaction& transaction) override {
    if (full) return absl::ResourceExhaustedError("the disk is full");
    ++commits;
    jobs_written += static_cast<int>(transaction.jobs.size());
    return inner_.Commit(transaction);
  }
  absl::StatusOr<v1::Job> GetJob(std::string_view id) const override {
    if (unreadable) return absl::DataLossError("the disk is broken");
    return inner_.GetJob(id);
  }
  absl::StatusOr<std::vector<v1::Job>> ListJobs() const override { return inner_.ListJobs(); }
  absl::StatusOr<std::vector<v1::Job>> ListActiveJobs() const override {
    return inner_.ListActiveJobs();
  }
  absl::StatusOr<std::vector<v1::JobSummary>> ListEnded(const JobFilter& filter, int64_t before,
                                                        int64_t limit) const override {
    return inner_.ListEnded(filter, before, limit);
  }
  absl::StatusOr<std::map<v1::JobState, int64_t>> CountEnded(
      const JobFilter& filter) const override {
    return inner_.CountEnded(filter);
  }
  absl::StatusOr<std::string> GetProgram(std::string_view sha256) const override {
    return inner_.GetProgram(sha256);
  }
  absl::StatusOr<std::vector<v1::JobEvent>> Events(std::string_view job, int64_t after_sequence,
                                                   int64_t limit) const override {
    return inner_.Events(job, after_sequence, limit);
  }
  absl::StatusOr<int64_t> LastSequence(std::string_view job) const override {
    return inner_.LastSequence(job);
  }
  absl::StatusOr<std::string> GetHistory(std::string_view job) const override {
    return inner_.GetHistory(job);
  }
  absl::StatusOr<std::vector<LearnedMemory>> Learned() const override { return inner_.Learned(); }
  absl::StatusOr<std::vector<v1::Drain>> Drains() const override { return inner_.Drains(); }
  absl::StatusOr<std::vector<OwnerUsage>> Usages() const override { return inner_.Usages(); }
  absl::StatusOr<int64_t> LastNumber() const override { return inner_.LastNumber(); }

 private:
  MemoryStore inner_;
};

}  // namespace terrace
