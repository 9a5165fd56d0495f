// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/life/job_state.h"
#include "tests/sim/control_sim.h"

// What must hold after each step.
namespace terrace {

void ControlSim::Send(std::string_view worker, const v1::CoordinatorMessage& message) {
  for (const v1::RankConfig& config : message.start().ranks()) CheckStart(worker, config);
  if (message.has_go()) {
    const absl::StatusOr<v1::Job> job = store_.GetJob(message.go().job());
    if (!job.ok() || job->epoch() != message.go().epoch() || !HoldsDevices(job->state()))
      Fail(absl::StrCat("job ", message.go().job(), " is told to go, which is not stored"));
  }
  for (Link& link : links_) {
    if (link.worker->name() == worker && link.session != 0) link.down.push_back(message);
  }
}

// Of a worker that is lost nothing counts that it has reported, also when it is back.
void ControlSim::ForgetLost() {
  const int64_t lost_after_ns = Cluster::Timing().beat.lost_after_ns;
  for (Link& link : links_) {
    if (clock_.MonotonicNanos() - link.heard_ns > lost_after_ns) link.reported.clear();
  }
}

// While a worker that is not lost reports ranks of a job, no other gang of it is placed.
void ControlSim::CheckPlaced(const v1::Job& job) {
  counts_.preempted += job.reason() == v1::REASON_PREEMPTED;
  const absl::StatusOr<v1::Job> before = store_.GetJob(job.id());
  if (job.state() != v1::STARTING || !before.ok() || before->epoch() == job.epoch()) return;
  const int ranks = job.placement().ranks_size();
  const int former = std::exchange(sizes_.try_emplace(job.id(), ranks).first->second, ranks);
  counts_.resized += former != ranks;
  for (const v1::Placement::Rank& rank : job.placement().ranks()) {
    if (drained_.contains(rank.worker()))
      Fail(absl::StrCat("job ", job.id(), " is placed on ", rank.worker(), ", which is drained"));
  }
  ForgetLost();
  for (const Link& link : links_) {
    for (const auto& [id, epoch] : link.reported) {
      if (id == job.id()) {
        Fail(absl::StrCat("job ", id, " is placed for epoch ", job.epoch(), " while ",
                          link.worker->name(), " reports ranks of epoch ", epoch));
      }
    }
  }
}

// A gang starts where the store says, and nowhere else, whatever died in between.
void ControlSim::CheckStart(std::string_view worker, const v1::RankConfig& config) {
  const std::string rank =
      absl::StrCat("rank ", config.rank(), " of job ", config.job(), ", epoch ", config.epoch());
  const std::pair<std::string, uint32_t> place(worker, config.device());
  const auto [started, is_new] =
      started_.try_emplace({config.job(), config.epoch(), config.rank()}, place);
  counts_.started += is_new;
  counts_.restarts += is_new && config.epoch() > 1 && config.rank() == 0;
  if (started->second != place) {
    Fail(absl::StrCat(rank, " starts on ", Absl(worker), ", device ", config.device(),
                      ", and has started on ", started->second.first, ", device ",
                      started->second.second));
  }
  const absl::StatusOr<v1::Job> job = store_.GetJob(config.job());
  if (!job.ok() || job->epoch() != config.epoch() || !HoldsDevices(job->state()))
    return Fail(absl::StrCat(rank, " starts, which is not stored"));
  const auto& ranks = job->placement().ranks();
  const bool is_placed = std::any_of(ranks.begin(), ranks.end(), [&](const auto& placed) {
    return placed.rank() == config.rank() && placed.worker() == worker &&
           placed.device() == config.device();
  });
  if (!is_placed) Fail(absl::StrCat(rank, " starts where it is not placed"));
}

void ControlSim::CheckAll() {
  ForgetLost();
  CheckWorkers();
  if (std::exchange(checked_, store_.changes) == store_.changes) return;
  const std::vector<v1::Job> jobs = *store_.ListJobs();
  CheckStored(jobs);
  CheckDevices(jobs);
  std::set<std::string> drained;
  for (const v1::DrainedNode& node : reconciler_->Drains()) drained.insert(node.drain().node());
  for (const std::string& worker : drained_) {
    if (!drained.contains(worker)) Fail(absl::StrCat("the drain of ", worker, " is lost"));
  }
}

// What a client was told is stored, and stays.
void ControlSim::CheckStored(const std::vector<v1::Job>& jobs) {
  std::map<std::string_view, const v1::Job*> by_id;
  for (const v1::Job& job : jobs) by_id[job.id()] = &job;
  for (const std::string& id : ids_) {
    const auto found = by_id.find(id);
    if (found == by_id.end()) return Fail(absl::StrCat("job ", id, " was accepted and is lost"));
    const v1::Job& job = *found->second;
    const Known& known = told_[id];
    if (job.epoch() < known.epoch) {
      Fail(absl::StrCat("job ", id, " is stored with epoch ", job.epoch(),
                        ", and a client was told of epoch ", known.epoch));
    }
    if (known.ended != v1::PENDING && job.state() != known.ended) {
      Fail(absl::StrCat("job ", id, " was ", v1::JobState_Name(known.ended), " and is ",
                        v1::JobState_Name(job.state())));
    }
    NoteTold(job);  // whoever asks now is told so
  }
}

// No device has two gangs.
void ControlSim::CheckDevices(const std::vector<v1::Job>& jobs) {
  std::map<std::pair<std::string, uint32_t>, std::string> holders;
  for (const v1::Job& job : jobs) {
    if (!HoldsDevices(job.state())) continue;
    for (const v1::Placement::Rank& rank : job.placement().ranks()) {
      const auto [held, is_new] = holders.try_emplace({rank.worker(), rank.device()}, job.id());
      if (!is_new || rank.device() >= kSimDevicesEach) {
        Fail(absl::StrCat("job ", job.id(), " is placed on device ", rank.device(), " of ",
                          rank.worker(), is_new ? ", which it has not" : ", as is job ",
                          is_new ? "" : held->second));
      }
    }
  }
}

// Of the ranks that compute on a device none knows of another.
void ControlSim::CheckWorkers() {
  for (const Link& link : links_) {
    std::map<uint32_t, std::string> computing;
    for (const auto& [key, rank] : link.worker->ranks()) {
      if (rank.report.state() != v1::RANK_RUNNING) continue;
      const std::string name = absl::StrCat(std::get<0>(key), ", epoch ", std::get<1>(key));
      const auto [held, is_new] = computing.try_emplace(rank.report.device(), name);
      if (!is_new) {
        Fail(absl::StrCat("device ", rank.report.device(), " of ", link.worker->name(),
                          " computes for ", name, " and for ", held->second));
      }
    }
  }
}

}  // namespace terrace
