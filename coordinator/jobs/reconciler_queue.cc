// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "coordinator/jobs/dependencies.h"
#include "coordinator/jobs/reconciler.h"

// What must be so before a job may start, beside free devices: the ends of other jobs.
namespace terrace {

std::optional<v1::JobState> Reconciler::StateOf(std::string_view id) const {
  if (const auto found = jobs_.find(id); found != jobs_.end()) return found->second.job.state();
  if (const auto found = ended_.find(id); found != ended_.end()) return found->second.state;
  return std::nullopt;
}

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

}  // namespace terrace
