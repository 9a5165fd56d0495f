// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/life/dependencies.h"
#include "coordinator/life/time_limit.h"

// What decides on a job's place in the queue beside free devices: the ends of other jobs, what its
// owner has had, and quotas.
namespace terrace {
namespace {

// Of an owner without jobs, less is forgotten.
constexpr double kDeviceSecondsMin = 1;

constexpr uint32_t kArrayJobsMax = 1000;
constexpr int kArrayKeysMax = 16;
constexpr size_t kArrayTextBytesMax = 500;  // of a key or value

bool IsLine(const std::string& text) { return CleanLine(text, kArrayTextBytesMax) == text; }

uint32_t DevicesOf(const v1::Job& job) {
  return HoldsDevices(job.state()) ? static_cast<uint32_t>(job.placement().ranks_size()) : 0;
}

// What its present gang has had.
double DeviceSecondsOf(const v1::Job& job, int64_t unix_ms) {
  return DevicesOf(job) * (HeldSeconds(job, unix_ms) - job.held_before_seconds());
}

}  // namespace

absl::Status Reconciler::CheckAfter(const Dependencies& dependencies) const {
  return CheckDependencies(dependencies, [this](std::string_view id) { return StateOf(id); });
}

std::string Reconciler::WaitsFirst(const v1::Job& job) const {
  if (job.epoch() > 0) return "";  // it has started once
  return UnmetText(job.dependencies(), [this](std::string_view id) { return StateOf(id); });
}

// Each end may be what others cannot start after, and these end, too.
void Reconciler::EndUnmet() {
  std::set<std::string> again;
  while (!dependents_due_.empty()) {
    const std::string id = *dependents_due_.begin();
    dependents_due_.erase(dependents_due_.begin());
    const Entry* entry = Find(id);
    if (entry == nullptr || entry->job.epoch() > 0) continue;
    const std::string never = NeverMetText(
        entry->job.dependencies(), [this](std::string_view other) { return StateOf(other); });
    if (never.empty()) continue;
    if (const absl::Status status = Update(id, DependencyFailed{never}); !status.ok()) {
      log::Warn("job ", id, " cannot be ended: ", status.message());
      again.insert(id);
    }
  }
  dependents_due_ = std::move(again);
}

// ---- owners -----------------------------------------------------------------------------------

std::map<std::string, Reconciler::OwnerNow, std::less<>> Reconciler::OwnersNow(
    int64_t unix_ms) const {
  std::map<std::string, OwnerNow, std::less<>> owners;
  for (const auto& [owner, usage] : usages_) {
    const double used = DecayedSeconds(usage, unix_ms, queue_.fair_share_half_life_seconds);
    if (used >= kDeviceSecondsMin) owners[owner].device_seconds = used;
  }
  for (const std::string& id : index_.with_gang()) {
    const v1::Job& job = jobs_.find(id)->second.job;
    OwnerNow& owner = owners[job.owner()];
    owner.devices += DevicesOf(job);
    if (HoldsDevices(job.state())) {
      const TierBytes bytes = BytesOf(job.plan());
      for (size_t tier = 0; tier < kQueueTiers; ++tier) owner.bytes[tier] += bytes[tier];
    }
    owner.device_seconds += DeviceSecondsOf(job, unix_ms);
  }
  for (const auto& [number, id] : index_.waiting()) owners[jobs_.find(id)->second.job.owner()];
  return owners;
}

std::optional<OwnerUsage> Reconciler::Released(const v1::Job& before, const v1::Job& after) const {
  if (!HoldsDevices(before.state()) || HoldsDevices(after.state())) return std::nullopt;
  const int64_t unix_ms = clock_.UnixMillis();
  const auto known = usages_.find(before.owner());
  const Usage usage =
      WithUse(known == usages_.end() ? Usage{} : known->second, DeviceSecondsOf(before, unix_ms),
              unix_ms, queue_.fair_share_half_life_seconds);
  return OwnerUsage{.owner = before.owner(),
                    .device_ms = static_cast<int64_t>(usage.device_seconds * 1000),
                    .unix_ms = unix_ms};
}

double Reconciler::PriorityOf(const v1::Job& job, int64_t unix_ms) const {
  const int64_t since_ms = std::max(job.submitted_unix_ms(), job.resumed_unix_ms());
  const auto share = fair_shares_.find(job.owner());
  return QueuePriority(job.spec().priority(), std::max<int64_t>(0, unix_ms - since_ms),
                       share == fair_shares_.end() ? 1 : share->second, queue_);
}

Reconciler::QueueView Reconciler::QueueNow(const std::vector<const v1::Job*>& waiting,
                                           int64_t unix_ms) {
  QueueView view;
  owners_ = OwnersNow(unix_ms);
  double total = 0;
  for (const auto& [name, owner] : owners_) total += owner.device_seconds;
  fair_shares_.clear();
  std::map<std::string_view, size_t> index;
  for (const auto& [name, owner] : owners_) {
    fair_shares_[name] = FairShareFactor(owner.device_seconds, total, owners_.size());
    index[name] = view.owners.size();
    view.owners.push_back({.name = name,
                           .devices_held = owner.devices,
                           .devices_quota = queue_.QuotaOf(name),
                           .bytes_held = owner.bytes,
                           .bytes_quota = queue_.BytesQuotaOf(name)});
  }
  view.jobs.reserve(waiting.size());
  for (const v1::Job* job : waiting) {
    QueuedJob& queued = view.jobs.emplace_back(QueuedJobOf(*job));
    queued.priority = PriorityOf(*job, unix_ms);
    queued.owner = index.find(job->owner())->second;
    if (job->dependencies_size() > 0) queued.waits_first = WaitsFirst(*job);
  }
  AddArrays(waiting, &view);
  return view;
}

// ---- arrays -----------------------------------------------------------------------------------

absl::Status Reconciler::CheckMember(const v1::ArrayMember& member, std::string_view owner) const {
  const bool is_none = member.size() == 0 && member.values().empty() && member.array().empty();
  if (is_none) return absl::OkStatus();
  if (member.size() > kArrayJobsMax || member.index() >= member.size()) {
    return absl::InvalidArgumentError(absl::StrCat("array: got job ", member.index(), " of ",
                                                   member.size(), ", must be one of at most ",
                                                   kArrayJobsMax, ", counted from 0"));
  }
  const bool is_short = member.values_size() <= kArrayKeysMax &&
                        std::all_of(member.values().begin(), member.values().end(),
                                    [](const v1::ArrayMember::Value& value) {
                                      return IsLine(value.key()) && IsLine(value.value());
                                    });
  if (!is_short) {
    return absl::InvalidArgumentError(
        absl::StrCat("array: got a key or value that is longer than ", kArrayTextBytesMax,
                     " bytes or no line of text, or more than ", kArrayKeysMax,
                     " keys; must be fewer, or shorter"));
  }
  if (member.array().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const v1::Job first, Get(member.array()));
  if (first.array().array() != first.id()) {
    return absl::InvalidArgumentError(
        absl::StrCat("array: got ", member.array(), ", which is not the first job of an array"));
  }
  if (first.owner() == owner) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("array: got ", member.array(), ", which ", first.owner(), " submitted"));
}

void Reconciler::AddArrays(const std::vector<const v1::Job*>& waiting, QueueView* view) const {
  std::map<std::string_view, size_t> index;
  for (size_t i = 0; i < waiting.size(); ++i) {
    const v1::ArrayMember& member = waiting[i]->array();
    if (member.running_max() == 0) continue;
    const auto [known, is_new] = index.try_emplace(member.array(), view->arrays.size());
    if (is_new)
      view->arrays.push_back({.name = member.array(), .running_max = member.running_max()});
    view->jobs[i].array = known->second;
  }
  if (index.empty()) return;
  for (const std::string& id : index_.with_gang()) {
    const v1::Job& job = jobs_.find(id)->second.job;
    const auto of = index.find(job.array().array());
    if (of != index.end() && HoldsDevices(job.state())) ++view->arrays[of->second].running;
  }
}

v1::ListSharesResponse Reconciler::Shares() const {
  const int64_t unix_ms = clock_.UnixMillis();
  const std::map<std::string, OwnerNow, std::less<>> owners = OwnersNow(unix_ms);
  double total = 0;
  for (const auto& [name, owner] : owners) total += owner.device_seconds;
  std::map<std::string_view, std::pair<uint32_t, uint32_t>> jobs;  // that run, and that wait
  for (const auto& [id, entry] : jobs_) {
    auto& [running, waiting] = jobs[entry.job.owner()];
    ++(HoldsDevices(entry.job.state()) ? running : waiting);
  }
  v1::ListSharesResponse response;
  response.set_half_life_seconds(queue_.fair_share_half_life_seconds);
  for (const auto& [name, owner] : owners) {
    v1::Share* share = response.add_shares();
    share->set_owner(name);
    share->set_device_seconds(owner.device_seconds);
    share->set_usage_ratio(total > 0 ? owner.device_seconds / total : 0);
    share->set_fair_share_factor(FairShareFactor(owner.device_seconds, total, owners.size()));
    share->set_devices(owner.devices);
    share->set_devices_quota(queue_.QuotaOf(name));
    const TierBytes quota = queue_.BytesQuotaOf(name);
    for (size_t tier = 0; tier < kQueueTiers; ++tier) {
      v1::Share::Memory* memory = share->add_memory();
      memory->set_tier(std::string(kQueueTierNames[tier]));
      memory->set_bytes(owner.bytes[tier]);
      memory->set_bytes_quota(quota[tier]);
    }
    share->set_jobs_running(jobs[name].first);
    share->set_jobs_waiting(jobs[name].second);
  }
  return response;
}

}  // namespace terrace
