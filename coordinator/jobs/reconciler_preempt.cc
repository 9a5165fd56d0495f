// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/life/time_limit.h"
#include "coordinator/queue/preempt.h"

// Jobs that give their devices back for a job of a higher priority (`--preempt-priority`).
namespace terrace {
namespace {

// A job that is planned to start so soon anyway is not worth the start of another.
constexpr int64_t kSoonEnoughMs = 60'000;

// Of one start of the job: what it loses, times its devices, when it has to start again.
double SecondsOfAStart(const v1::Job& job) {
  const int starts = 1 + job.restarts() + job.preemptions();
  double seconds = 0;
  for (const v1::SpentTime& spent : job.spent()) {
    if (spent.cause() == "starting") seconds = spent.seconds();
  }
  return seconds / starts;
}

// And will: one that hangs goes on only when somebody sees to it.
bool Stops(const v1::Job& job) {
  if (job.has_hang()) return false;
  return job.pause_requested() || job.cancel_requested() || job.time_limit_unix_ms() > 0;
}

}  // namespace

std::vector<HeldGang> Reconciler::GangsUnder(int32_t priority, const std::vector<QueueNode>& nodes,
                                             int64_t unix_ms, std::vector<std::string>* ids) const {
  std::unordered_map<std::string_view, size_t> index;
  for (size_t node = 0; node < nodes.size(); ++node) index[nodes[node].name] = node;
  std::vector<HeldGang> gangs;
  for (const std::string& id : index_.with_gang()) {
    const v1::Job& job = jobs_.find(id)->second.job;
    if (!HoldsDevices(job.state())) continue;
    HeldGang& gang = gangs.emplace_back();
    ids->push_back(id);
    for (const v1::Placement::Rank& placed : job.placement().ranks()) {
      const auto node = index.find(placed.worker());
      if (node != index.end()) ++gang.devices[node->second];
    }
    gang.lost_device_seconds = job.placement().ranks_size() * SecondsOfAStart(job);
    gang.stops = Stops(job);
    const int64_t held_ms = unix_ms - job.placed_unix_ms();
    gang.may_stop = !gang.stops && !job.has_hang() && job.spec().checkpoint().save() != "never" &&
                    job.spec().priority() <= priority &&
                    held_ms >= queue_.preempt_exempt_seconds * 1000;
  }
  return gangs;
}

void Reconciler::PreemptFor(const v1::Job& job, const Need& need, const WaitStory& story,
                            const std::vector<QueueNode>& nodes, int64_t unix_ms) {
  if (queue_.preempt_priority == 0) return;
  if (story.starts_ms != kUnknownMs && story.starts_ms - unix_ms <= kSoonEnoughMs) return;
  const int32_t priority = job.spec().priority();
  std::vector<std::string> ids;
  const std::vector<HeldGang> gangs =
      GangsUnder(priority - static_cast<int32_t>(queue_.preempt_priority), nodes, unix_ms, &ids);
  for (const size_t gang : GangsToStop(need, nodes, gangs)) {
    if (const absl::Status status = Update(ids[gang], Preempted{job.id()}); !status.ok()) {
      log::Warn("job ", ids[gang], " cannot be preempted: ", status.message());
      continue;
    }
    ++stats_.preemptions;
    place_due_ = true;
  }
}

std::map<std::string, std::string, std::less<>> Reconciler::StoppingFor() const {
  std::map<std::string, std::string, std::less<>> texts;
  for (const std::string& id : index_.with_gang()) {
    const v1::Job& job = jobs_.find(id)->second.job;
    if (job.preempted_by().empty() || !HoldsDevices(job.state())) continue;
    std::string& text = texts[job.preempted_by()];
    absl::StrAppend(&text, text.empty() ? "" : ", ", id);
  }
  for (auto& [job, text] : texts)
    absl::StrAppend(&text, absl::StrContains(text, ',') ? " stop" : " stops",
                    " for it, after a checkpoint");
  return texts;
}

}  // namespace terrace
