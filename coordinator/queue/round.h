// One run through the queue (schedule.h): the state of workers while jobs are considered one after
// the other. What jobs of the same need have in common is found once, for the first of them, since
// thousands may wait behind a full cluster.
//
// Time is an argument. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/queue/earliest.h"
#include "coordinator/queue/need.h"
#include "coordinator/queue/schedule.h"

namespace terrace {

class QueueRound {
 public:
  QueueRound(std::vector<QueueNode> nodes, int64_t now_ms, std::vector<QueueOwner> owners,
             std::vector<QueueArray> arrays);

  // Ranks where it starts now, or why it waits. `job` is borrowed until EstimateStarts() has run.
  QueueDecision Consider(const QueuedJob& job);
  // After the last job: completes the stories of those that get an estimate, as if each started at
  // its earliest, one after the other.
  void EstimateStarts();

 private:
  // A job that is kept devices for.
  struct Reservation {
    std::string_view job;
    Earliest earliest;
  };
  // Of one worker.
  struct Kept {
    const Reservation* by = nullptr;  // null: nothing is kept of it
    bool whole = false;               // it is not known when it is needed
    int64_t from_ms = kUnknownMs;
    uint32_t spare = 0;  // devices that are free at `from_ms` and not needed
  };
  struct Group {
    std::vector<size_t> matching;  // workers
    // What is planned to take so long, or longer, finds no devices any more.
    std::optional<int64_t> fails_from_ms;
    std::shared_ptr<const WaitStory> story;  // of all that wait and get no estimate
    std::optional<WaitReason> busy;          // of those that wait for something else first
  };

  // A job whose start is estimated.
  struct Estimated {
    const QueuedJob* job;
    const Group* group;  // of groups_, where it stays
    std::shared_ptr<WaitStory> story;
  };

  bool IsTried(const QueuedJob& job, const Group& group) const;
  Group& GroupOf(const Need& need);
  // Devices of the worker that a job which ends then may take now.
  uint32_t Available(size_t node, int64_t end_ms) const;
  // As many workers as are needed, with enough of them, the fullest first; fewer: there are not.
  std::vector<size_t> WorkersFor(const QueuedJob& job, const Group& group, int64_t end_ms) const;
  std::vector<RankPlace> Take(const QueuedJob& job, const std::vector<size_t>& workers,
                              int64_t end_ms);
  void Reserve(const QueuedJob& job, const Group& group);
  // A reason why the job may not take devices, free or not; nothing: it may.
  std::optional<WaitReason> Barred(const QueuedJob& job) const;
  std::optional<WaitReason> BarredByQuota(const QueuedJob& job) const;
  std::optional<WaitReason> BarredByArray(const QueuedJob& job) const;
  // Of a job that may not take devices yet, for this reason.
  std::shared_ptr<const WaitStory> NotYet(const QueuedJob& job, WaitReason first, Group& group);
  std::shared_ptr<const WaitStory> StoryOf(const QueuedJob& job, Group& group);
  // The first reservation on any of them; null: there is none.
  const Reservation* ReservationOn(const std::vector<size_t>& workers) const;

  const int64_t now_ms_;
  std::vector<QueueNode> nodes_;
  std::vector<QueueOwner> owners_;
  std::vector<QueueArray> arrays_;
  std::vector<Kept> kept_;  // by worker
  std::vector<std::unique_ptr<Reservation>> reservations_;
  std::map<Need, Group> groups_;
  std::vector<Estimated> estimated_;
  int tries_ = 0;  // that found no devices
};

}  // namespace terrace
