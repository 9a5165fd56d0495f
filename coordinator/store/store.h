// Where the coordinator keeps what must outlive it: jobs, programs by hash, the tail of each job's
// events, what ranks were seen to need outside their arenas, which workers are drained, and what
// each user has had of the devices.
//
// A job that has ended is kept as it is, and in short: lists of them are made of the latter, so
// that the coordinator holds nothing of jobs that have ended.
//
// Writes are transactions: all of one is stored or nothing. A job is written with the version its
// writer observed; a stored job that has moved on since makes the whole transaction ABORTED. A
// kSynced transaction is durable when Commit returns OK; a kBuffered one survives the death of the
// process, not that of the machine (step events, progress).
//
// Implementations pass tests/conformance/store_conformance.h. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/job_filter.h"
#include "proto/v1/drain.pb.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/list.pb.h"

namespace terrace {

// Only this many of a job's newest events are kept: what `watch` can replay.
inline constexpr int64_t kEventsKeptPerJob = 4096;

struct StoredProgram {
  std::string sha256;
  std::string bytes;  // as proto/program/program_hash.h serialises it
};

// What a rank of a job of this shape was seen to need outside its arenas on this worker, with a
// margin.
struct LearnedMemory {
  std::string worker;
  std::string shape;
  int64_t external_bytes = 0;
};

// What one user's jobs have had of the devices (coordinator/queue/fair_share.h).
struct OwnerUsage {
  std::string owner;
  int64_t device_ms = 0;  // as of then
  int64_t unix_ms = 0;
};

enum class Durability { kSynced, kBuffered };

// All that is kept of a job's life for pictures (proto/v1/history.proto), serialised.
struct StoredHistory {
  std::string job;
  std::string bytes;
};

struct Transaction {
  // Each with the version observed, 0 for a new job; it is stored with that version + 1.
  std::vector<v1::Job> jobs;
  std::vector<StoredProgram> programs;   // one that is there already is left alone
  std::vector<v1::JobEvent> events;      // sequences grow by one per job; the writer numbers them
  std::vector<LearnedMemory> learned;    // of one worker and shape the largest is kept
  std::vector<StoredHistory> histories;  // each in place of what was kept of its job
  std::vector<v1::Drain> drains;         // each in place of what was kept of its worker
  std::vector<std::string> undrained;    // workers that are drained no more
  std::vector<OwnerUsage> usages;        // each in place of what was kept of its owner
  std::vector<v1::JobSummary> ended;     // of jobs that have ended, in this transaction or before
  Durability durability = Durability::kSynced;
};

class Store {
 public:
  virtual ~Store() = default;

  // ABORTED: a job's version is not the stored one. RESOURCE_EXHAUSTED: the disk is full. Nothing
  // is stored then.
  virtual absl::Status Commit(const Transaction& transaction) = 0;

  // NOT_FOUND when there is none.
  virtual absl::StatusOr<v1::Job> GetJob(std::string_view id) const = 0;
  // In order of submission.
  virtual absl::StatusOr<std::vector<v1::Job>> ListJobs() const = 0;
  // Those of which no end was stored in short, in order of submission.
  virtual absl::StatusOr<std::vector<v1::Job>> ListActiveJobs() const = 0;
  // Of the jobs whose end was stored and whose numbers are smaller than `before`, at most `limit`,
  // the newest first.
  virtual absl::StatusOr<std::vector<v1::JobSummary>> ListEnded(const JobFilter& filter,
                                                                int64_t before,
                                                                int64_t limit) const = 0;
  // How many of them there are of each state.
  virtual absl::StatusOr<std::map<v1::JobState, int64_t>> CountEnded(
      const JobFilter& filter) const = 0;
  // The bytes of a program. NOT_FOUND when there is none of that hash.
  virtual absl::StatusOr<std::string> GetProgram(std::string_view sha256) const = 0;
  // At most `limit` kept events of the job with a larger sequence than `after_sequence`, in order.
  virtual absl::StatusOr<std::vector<v1::JobEvent>> Events(std::string_view job,
                                                           int64_t after_sequence,
                                                           int64_t limit) const = 0;
  // Of the job's newest event; 0 when it has none.
  virtual absl::StatusOr<int64_t> LastSequence(std::string_view job) const = 0;
  // Empty when nothing is kept of the job.
  virtual absl::StatusOr<std::string> GetHistory(std::string_view job) const = 0;
  // All of it, by worker and shape.
  virtual absl::StatusOr<std::vector<LearnedMemory>> Learned() const = 0;
  // All of them, by worker.
  virtual absl::StatusOr<std::vector<v1::Drain>> Drains() const = 0;
  // All of them, by owner.
  virtual absl::StatusOr<std::vector<OwnerUsage>> Usages() const = 0;
  // At least the number of any job that was ever stored, as it ends its id; 0: there was none.
  virtual absl::StatusOr<int64_t> LastNumber() const = 0;
};

}  // namespace terrace
