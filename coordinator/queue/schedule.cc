// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/schedule.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"
#include "coordinator/queue/round.h"

namespace terrace {

WaitStory NoWorkerStory(std::string text) {
  WaitStory story;
  story.reasons.push_back({WaitFor::kWorker, std::move(text)});
  story.estimate = "not known: no worker could hold it";
  return story;
}

std::string MessageOf(const WaitStory& story) {
  return absl::StrJoin(story.reasons, ", and ",
                       [](std::string* out, const WaitReason& reason) { *out += reason.text; });
}

std::vector<QueueDecision> ScheduleQueue(absl::Span<const QueuedJob> jobs,
                                         std::vector<QueueNode> nodes, int64_t now_ms,
                                         std::vector<QueueOwner> owners,
                                         std::vector<QueueArray> arrays) {
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::make_tuple(-jobs[a].priority, jobs[a].submitted_ms) <
           std::make_tuple(-jobs[b].priority, jobs[b].submitted_ms);
  });
  QueueRound round(std::move(nodes), now_ms, std::move(owners), std::move(arrays));
  std::vector<QueueDecision> decisions;
  decisions.reserve(jobs.size());
  for (const size_t job : order) {
    decisions.push_back(round.Consider(jobs[job]));
    decisions.back().job = job;
  }
  round.EstimateStarts();
  return decisions;
}

}  // namespace terrace
