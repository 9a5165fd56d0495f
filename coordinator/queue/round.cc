// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/round.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

// Jobs that are behind others of the same need and looked for devices in vain; more are not tried.
constexpr int kTriesMax = 256;

constexpr char kByPlan[] = "by the planned ends of the jobs that run and of those ahead of it";
constexpr char kWaitsFirst[] = "not known: it may not take devices yet";
constexpr char kEndUnknown[] =
    "not known: it is not known when the jobs end that hold the devices it needs";

// A job holds devices for a moment at least: what it holds is never free.
int64_t EndMs(const QueuedJob& job, int64_t start_ms) {
  return job.planned_ms == kUnknownMs ? kUnknownMs
                                      : start_ms + std::max<int64_t>(1, job.planned_ms);
}

QueueDecision Waits(std::shared_ptr<const WaitStory> story) {
  QueueDecision decision;
  decision.waits = std::move(story);
  return decision;
}

struct QuotaNumbers {
  std::string needs, held, quota;
  bool is_too_large = false;  // whatever else the owner's jobs hold
};

WaitReason QuotaReason(std::string_view owner, const QuotaNumbers& numbers) {
  std::string text =
      absl::StrCat("needs ", numbers.needs, "; jobs of ", Absl(owner), " hold ", numbers.held,
                   " of the ", numbers.quota, " that the quota allows");
  if (numbers.is_too_large)
    absl::StrAppend(&text, ": it starts only when the quota is raised, or submit a smaller job");
  return {WaitFor::kQuota, std::move(text)};
}

QueueDecision Starts(std::vector<RankPlace> ranks) {
  QueueDecision decision;
  decision.ranks = std::move(ranks);
  return decision;
}

}  // namespace

QueueRound::QueueRound(std::vector<QueueNode> nodes, int64_t now_ms, std::vector<QueueOwner> owners,
                       std::vector<QueueArray> arrays)
    : now_ms_(now_ms),
      nodes_(std::move(nodes)),
      owners_(std::move(owners)),
      arrays_(std::move(arrays)),
      kept_(nodes_.size()) {}

QueueDecision QueueRound::Consider(const QueuedJob& job) {
  Group& group = GroupOf(job.need);
  if (group.matching.size() < job.need.nodes) {
    if (group.story == nullptr) {
      group.story = std::make_shared<const WaitStory>(
          NoWorkerStory(NoMatchText(job.need, group.matching.size(), nodes_)));
    }
    return Waits(group.story);
  }
  if (std::optional<WaitReason> barred = Barred(job); barred.has_value())
    return Waits(NotYet(job, *std::move(barred), group));
  if (IsTried(job, group)) {
    const int64_t end_ms = EndMs(job, now_ms_);
    const std::vector<size_t> workers = WorkersFor(job, group, end_ms);
    if (workers.size() == job.need.nodes) return Starts(Take(job, workers, end_ms));
    group.fails_from_ms = job.planned_ms;
    ++tries_;
  }
  if (ReservationOn(group.matching) == nullptr) Reserve(job, group);
  return Waits(StoryOf(job, group));
}

std::optional<WaitReason> QueueRound::Barred(const QueuedJob& job) const {
  if (!job.waits_first.empty()) return WaitReason{WaitFor::kDependency, job.waits_first};
  std::optional<WaitReason> array = BarredByArray(job);
  return array.has_value() ? array : BarredByQuota(job);
}

std::optional<WaitReason> QueueRound::BarredByArray(const QueuedJob& job) const {
  if (job.array == kNoArray) return std::nullopt;
  const QueueArray& array = arrays_[job.array];
  if (array.running_max == 0 || array.running < array.running_max) return std::nullopt;
  return WaitReason{WaitFor::kArray, absl::StrCat(array.running, " of its array ", Absl(array.name),
                                                  " hold devices, and at most ", array.running_max,
                                                  " may at a time (--max-running)")};
}

std::optional<WaitReason> QueueRound::BarredByQuota(const QueuedJob& job) const {
  if (job.owner == kNoOwner) return std::nullopt;
  const QueueOwner& owner = owners_[job.owner];
  if (owner.devices_quota > 0 && owner.devices_held + job.ranks > owner.devices_quota) {
    return QuotaReason(owner.name,
                       {.needs = absl::StrCat(job.ranks, job.ranks == 1 ? " device" : " devices"),
                        .held = absl::StrCat(owner.devices_held),
                        .quota = absl::StrCat(owner.devices_quota),
                        .is_too_large = job.ranks > owner.devices_quota});
  }
  for (size_t tier = 0; tier < kQueueTiers; ++tier) {
    const int64_t quota = owner.bytes_quota[tier];
    if (quota == 0 || owner.bytes_held[tier] + job.bytes[tier] <= quota) continue;
    return QuotaReason(owner.name, {.needs = absl::StrCat(FormatBytes(job.bytes[tier]), " of ",
                                                          Absl(kQueueTierNames[tier]), " memory"),
                                    .held = FormatBytes(owner.bytes_held[tier]),
                                    .quota = FormatBytes(quota),
                                    .is_too_large = job.bytes[tier] > quota});
  }
  return std::nullopt;
}

bool QueueRound::IsTried(const QueuedJob& job, const Group& group) const {
  if (!group.fails_from_ms.has_value()) return true;
  return job.planned_ms < *group.fails_from_ms && tries_ < kTriesMax;
}

QueueRound::Group& QueueRound::GroupOf(const Need& need) {
  const auto [found, is_new] = groups_.try_emplace(need);
  if (!is_new) return found->second;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (Matches(need, nodes_[node])) found->second.matching.push_back(node);
  }
  return found->second;
}

uint32_t QueueRound::Available(size_t node, int64_t end_ms) const {
  const Kept& kept = kept_[node];
  if (kept.whole) return 0;
  const uint32_t free = FreeDevices(nodes_[node]);
  const bool ends_before = end_ms != kUnknownMs && end_ms <= kept.from_ms;
  return kept.by == nullptr || ends_before ? free : std::min(free, kept.spare);
}

// Only the workers that are taken are in that order.
std::vector<size_t> QueueRound::WorkersFor(const QueuedJob& job, const Group& group,
                                           int64_t end_ms) const {
  std::vector<std::pair<uint32_t, size_t>> free;
  for (const size_t node : group.matching) {
    if (job.need.nodes > 1 && !nodes_[node].problem.empty()) continue;
    if (Available(node, end_ms) >= job.need.devices)
      free.emplace_back(FreeDevices(nodes_[node]), node);
  }
  const auto taken = std::min<size_t>(job.need.nodes, free.size());
  std::partial_sort(free.begin(), free.begin() + static_cast<ptrdiff_t>(taken), free.end(),
                    [this](const auto& a, const auto& b) {
                      return std::make_tuple(a.first, std::cref(nodes_[a.second].name)) <
                             std::make_tuple(b.first, std::cref(nodes_[b.second].name));
                    });
  std::vector<size_t> workers;
  for (size_t i = 0; i < taken; ++i) workers.push_back(free[i].second);
  return workers;
}

// Ranks in order, worker after worker.
std::vector<RankPlace> QueueRound::Take(const QueuedJob& job, const std::vector<size_t>& workers,
                                        int64_t end_ms) {
  std::vector<RankPlace> ranks;
  if (job.owner != kNoOwner) {
    owners_[job.owner].devices_held += job.ranks;
    for (size_t tier = 0; tier < kQueueTiers; ++tier)
      owners_[job.owner].bytes_held[tier] += job.bytes[tier];
  }
  if (job.array != kNoArray) ++arrays_[job.array].running;
  for (uint32_t rank = 0; rank < std::max<uint32_t>(1, job.ranks); ++rank) {
    const size_t node = workers[rank / job.need.devices];
    std::vector<int64_t>& times = nodes_[node].free_at_ms;
    const auto device = std::find(times.begin(), times.end(), kFreeNow);
    ranks.push_back({node, static_cast<uint32_t>(device - times.begin())});
    *device = end_ms;
    Kept& kept = kept_[node];
    const bool ends_before = end_ms != kUnknownMs && end_ms <= kept.from_ms;
    if (kept.by != nullptr && !ends_before) --kept.spare;
  }
  return ranks;
}

void QueueRound::Reserve(const QueuedJob& job, const Group& group) {
  reservations_.push_back(std::make_unique<Reservation>(
      Reservation{job.id, EarliestFor(job.need, group.matching, nodes_)}));
  const Reservation& made = *reservations_.back();
  const int64_t from_ms = made.earliest.at_ms;
  for (const size_t node : group.matching) {
    kept_[node] = {.by = &made, .whole = from_ms == kUnknownMs, .from_ms = from_ms};
    if (!kept_[node].whole) kept_[node].spare = FreeDevices(nodes_[node], from_ms);
  }
  for (const size_t node : made.earliest.nodes) kept_[node].spare -= job.need.devices;
}

const QueueRound::Reservation* QueueRound::ReservationOn(const std::vector<size_t>& workers) const {
  for (const size_t node : workers) {
    if (kept_[node].by != nullptr) return kept_[node].by;
  }
  return nullptr;
}

// What there is of devices is as when the first such job of its need was considered.
std::shared_ptr<const WaitStory> QueueRound::NotYet(const QueuedJob& job, WaitReason first,
                                                    Group& group) {
  if (!group.busy.has_value())
    group.busy = WaitReason{WaitFor::kDevices, BusyText(job.need, group.matching, nodes_)};
  WaitStory story;
  story.reasons = {std::move(first), *group.busy};
  story.estimate = kWaitsFirst;
  return std::make_shared<const WaitStory>(std::move(story));
}

std::shared_ptr<const WaitStory> QueueRound::StoryOf(const QueuedJob& job, Group& group) {
  const Reservation& first = *ReservationOn(group.matching);
  const bool is_estimated = estimated_.size() < kJobsEstimatedMax;
  if (!is_estimated && group.story != nullptr) return group.story;
  WaitStory story;
  story.reasons.push_back({WaitFor::kDevices, BusyText(job.need, group.matching, nodes_)});
  if (first.job != job.id) {
    story.reasons.push_back(
        {WaitFor::kPriority, absl::StrCat("job ", Absl(first.job), " is ahead of it")});
  }
  if (is_estimated) {
    estimated_.push_back({&job, &group, std::make_shared<WaitStory>(std::move(story))});
    return estimated_.back().story;
  }
  story.estimate = absl::StrCat("not known: only of the first ", kJobsEstimatedMax,
                                " jobs that wait for devices it is estimated when they start");
  group.story = std::make_shared<const WaitStory>(std::move(story));
  return group.story;
}

void QueueRound::EstimateStarts() {
  for (const Estimated& one : estimated_) {
    const Earliest earliest = EarliestFor(one.job->need, one.group->matching, nodes_);
    one.story->estimate = earliest.nodes.empty() ? kEndUnknown : kByPlan;
    if (earliest.nodes.empty()) continue;
    one.story->starts_ms = std::max(now_ms_, earliest.at_ms);
    Hold(one.job->need, earliest, EndMs(*one.job, one.story->starts_ms), &nodes_);
  }
}

}  // namespace terrace
