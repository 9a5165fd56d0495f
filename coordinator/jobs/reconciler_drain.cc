// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/jobs/reconciler.h"

// Workers that are taken out of use.
//
// A drain is stored before anything is done about it. What follows for jobs is read off the stored
// drains in every pass, so that it goes on after a restart of the coordinator.
namespace terrace {
namespace {

constexpr int64_t kDeadlineMsMax = int64_t{366} * 24 * 3600 * 1000;

std::string HowTold(const v1::Drain& drain, int64_t unix_ms) {
  const std::string jobs = drain.keep_jobs() ? "jobs there run on" : "jobs there move";
  if (drain.deadline_unix_ms() == 0) return jobs;
  if (drain.deadline_unix_ms() <= unix_ms) return "jobs there move at once";
  return absl::StrCat(jobs, ", those that are left in ",
                      (drain.deadline_unix_ms() - unix_ms) / 1000, " s without a checkpoint");
}

absl::Status CheckDrain(const v1::DrainRequest& request) {
  if (request.reason().size() > kDrainReasonBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("reason: got ", request.reason().size(),
                                                   " bytes, the most are ", kDrainReasonBytesMax,
                                                   ": say it shorter"));
  }
  if (request.deadline_ms() >= 0 && request.deadline_ms() <= kDeadlineMsMax)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("deadline: got ", request.deadline_ms(),
                   " ms, which must be between 0 (at once) and a year; leave it out for none"));
}

}  // namespace

absl::StatusOr<v1::DrainedNode> Reconciler::Drain(const v1::DrainRequest& request,
                                                  std::string_view asked_by) {
  RETURN_IF_ERROR(CheckDrain(request));
  const auto before = drains_.find(request.node());
  if (!cluster_.Has(request.node()) && before == drains_.end()) {
    return absl::NotFoundError(absl::StrCat("no worker ", CleanLine(request.node()),
                                            ": `terrace nodes` lists those there are"));
  }
  if (before == drains_.end() && drains_.size() >= kDrainsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kDrainsMax, " workers are drained, the most there may be"));
  }
  const int64_t now_ms = clock_.UnixMillis();
  v1::Drain drain;
  drain.set_node(request.node());
  drain.set_reason(CleanLine(request.reason()));
  drain.set_asked_by(CleanLine(asked_by));
  drain.set_since_unix_ms(before == drains_.end() ? now_ms : before->second.since_unix_ms());
  if (request.has_deadline_ms()) drain.set_deadline_unix_ms(now_ms + request.deadline_ms());
  drain.set_keep_jobs(request.keep_jobs());
  drain.set_until_restart(request.until_restart());
  if (request.until_restart()) drain.set_worker_instance(cluster_.InstanceOf(request.node()));
  RETURN_IF_ERROR(Commit({.drains = {drain}}));
  log::Info("worker ", drain.node(), " is drained, asked by ", drain.asked_by(), ": ",
            HowTold(drain, now_ms), drain.reason().empty() ? "" : "; reason: ", drain.reason());
  drains_[drain.node()] = drain;
  ForgetBudgets();
  TouchJobsOn(drain.node());
  Pass();
  for (v1::DrainedNode& node : Drains()) {
    if (node.drain().node() == drain.node()) return std::move(node);
  }
  return absl::InternalError("a drain that was stored is gone");
}

absl::StatusOr<v1::Drain> Reconciler::Undrain(std::string_view node, std::string_view asked_by) {
  const auto found = drains_.find(node);
  if (found == drains_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "worker ", CleanLine(node), " is not drained: `terrace drain` lists those that are"));
  }
  v1::Drain ended = found->second;
  RETURN_IF_ERROR(Commit({.undrained = {ended.node()}}));
  log::Info("worker ", ended.node(), " is drained no more, asked by ", CleanLine(asked_by));
  drains_.erase(found);
  ForgetBudgets();
  TouchJobsOn(ended.node());
  Pass();
  return ended;
}

void Reconciler::EndDrainOfFormer(const std::string& worker, std::string_view instance) {
  const auto found = drains_.find(worker);
  if (found == drains_.end() || !found->second.until_restart() || instance.empty()) return;
  if (found->second.worker_instance() == instance) return;  // it has only dialled again
  if (const absl::Status status = Commit({.undrained = {worker}}); !status.ok()) {
    log::Warn("worker ", worker, " stays drained: ", status.message());
    return;
  }
  log::Info("worker ", worker, " has started again, and is drained no more");
  drains_.erase(found);
  ForgetBudgets();
}

DrainAction Reconciler::DrainActionNow(const v1::Job& job) const {
  DrainAction leaving;
  if (drains_.empty()) return leaving;
  for (const v1::Placement::Rank& placed : job.placement().ranks()) {
    const auto found = drains_.find(placed.worker());
    if (found == drains_.end()) continue;
    DrainAction one = DrainActionOf(job, found->second, clock_.UnixMillis());
    if (one.how > leaving.how) leaving = std::move(one);
  }
  return leaving;
}

std::map<std::string, std::set<std::string>, std::less<>> Reconciler::JobsOnDrained() const {
  std::map<std::string, std::set<std::string>, std::less<>> jobs;
  if (drains_.empty()) return jobs;
  for (const auto& [id, entry] : jobs_) {
    if (!HoldsDevices(entry.job.state())) continue;
    for (const v1::Placement::Rank& placed : entry.job.placement().ranks()) {
      if (drains_.contains(placed.worker())) jobs[placed.worker()].insert(id);
    }
  }
  // Ranks that have not ended yet, of a job that has gone on elsewhere or is over.
  for (const auto& [worker, report] : cluster_.Reports()) {
    const bool has_ended =
        report->state() == v1::RANK_SUCCEEDED || report->state() == v1::RANK_FAILED;
    if (!has_ended && drains_.contains(worker)) jobs[worker].insert(report->job());
  }
  return jobs;
}

std::vector<v1::DrainedNode> Reconciler::Drains() const {
  std::vector<v1::DrainedNode> nodes;
  const auto jobs = JobsOnDrained();
  for (const auto& [name, drain] : drains_) {
    v1::DrainedNode& node = nodes.emplace_back();
    *node.mutable_drain() = drain;
    const auto there = jobs.find(name);
    node.set_state(std::string(DrainedStateName(there != jobs.end())));
    if (there == jobs.end()) continue;
    node.mutable_jobs()->Add(there->second.begin(), there->second.end());
  }
  return nodes;
}

std::vector<NodeView> Reconciler::KnownNodes() const {
  std::vector<NodeView> nodes = cluster_.Known(clock_.MonotonicNanos());
  for (NodeView& node : nodes) node.drained = drains_.contains(node.name);
  return nodes;
}

std::vector<v1::Node> Reconciler::Nodes() const {
  std::vector<v1::Node> nodes = cluster_.List(clock_.MonotonicNanos());
  if (drains_.empty()) return nodes;
  const auto jobs = JobsOnDrained();
  for (v1::Node& node : nodes) {
    const auto found = drains_.find(node.name());
    if (found == drains_.end()) continue;
    node.set_state(std::string(DrainedStateName(jobs.contains(node.name()))));
    const std::string problem = node.problem().empty() ? "" : absl::StrCat("; ", node.problem());
    node.set_problem(absl::StrCat(RemarkOf(found->second), problem));
  }
  return nodes;
}

}  // namespace terrace
