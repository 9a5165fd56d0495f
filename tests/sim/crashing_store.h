// A store whose process dies at a commit, before or after it is written, and whose machine may lose
// power: then commits that nobody waited for are gone, the newest first.
//
// Dying is an exception, which passes through the code that was about to act on the commit.
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/store/memory_store.h"

namespace terrace {

struct Crashed {};

class CrashingStore final : public Store {
 public:
  bool full = false;    // commits fail as on a full disk
  int64_t changes = 0;  // of what is stored
  // Is told of each commit that does not fail, before it is made.
  std::function<void(const Transaction&)> watch = [](const Transaction&) {};

  // The commit that comes after so many others throws Crashed.
  void CrashAt(size_t commits, bool is_written) {
    crash_in_ = static_cast<int64_t>(commits);
    crash_is_written_ = is_written;
  }
  void CrashNever() { crash_in_ = -1; }
  // Of the buffered commits after the last one that was waited for, `kept` are left, or all.
  void LosePower(size_t kept) {
    if (log_.size() - synced_ <= kept) return;
    log_.resize(synced_ + kept);
    ++changes;
    inner_ = std::make_unique<MemoryStore>();
    for (const Transaction& transaction : log_) inner_->Commit(transaction).IgnoreError();
  }

  absl::Status Commit(const Transaction& transaction) override {
    const bool crashes = crash_in_ >= 0 && crash_in_-- == 0;
    if (crashes && !crash_is_written_) throw Crashed();
    if (full) return absl::ResourceExhaustedError("the disk is full");
    watch(transaction);
    const absl::Status status = inner_->Commit(transaction);
    if (status.ok()) log_.push_back(transaction);
    changes += status.ok();
    if (status.ok() && transaction.durability == Durability::kSynced) synced_ = log_.size();
    if (crashes) throw Crashed();
    return status;
  }
  absl::StatusOr<v1::Job> GetJob(std::string_view id) const override { return inner_->GetJob(id); }
  absl::StatusOr<std::vector<v1::Job>> ListJobs() const override { return inner_->ListJobs(); }
  absl::StatusOr<std::vector<v1::Job>> ListActiveJobs() const override {
    return inner_->ListActiveJobs();
  }
  absl::StatusOr<std::vector<v1::JobSummary>> ListEnded(const JobFilter& filter, int64_t before,
                                                        int64_t limit) const override {
    return inner_->ListEnded(filter, before, limit);
  }
  absl::StatusOr<std::map<v1::JobState, int64_t>> CountEnded(
      const JobFilter& filter) const override {
    return inner_->CountEnded(filter);
  }
  absl::StatusOr<std::string> GetProgram(std::string_view sha256) const override {
    return inner_->GetProgram(sha256);
  }
  absl::StatusOr<std::vector<v1::JobEvent>> Events(std::string_view job, int64_t after_sequence,
                                                   int64_t limit) const override {
    return inner_->Events(job, after_sequence, limit);
  }
  absl::StatusOr<int64_t> LastSequence(std::string_view job) const override {
    return inner_->LastSequence(job);
  }
  absl::StatusOr<std::string> GetHistory(std::string_view job) const override {
    return inner_->GetHistory(job);
  }
  absl::StatusOr<std::vector<LearnedMemory>> Learned() const override { return inner_->Learned(); }
  absl::StatusOr<std::vector<v1::Drain>> Drains() const override { return inner_->Drains(); }
  absl::StatusOr<std::vector<OwnerUsage>> Usages() const override { return inner_->Usages(); }
  absl::StatusOr<int64_t> LastNumber() const override { return inner_->LastNumber(); }

 private:
  std::unique_ptr<MemoryStore> inner_ = std::make_unique<MemoryStore>();
  std::vector<Transaction> log_;  // that inner_ has
  size_t synced_ = 0;             // of these, the first ones, that no loss of power undoes
  int64_t crash_in_ = -1;         // commits; negative: it does not crash
  bool crash_is_written_ = false;
};

}  // namespace terrace
