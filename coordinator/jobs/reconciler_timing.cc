// SPDX-License-Identifier: Apache-2.0
// Steps as they come beside those that were planned.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "coordinator/jobs/reconciler.h"

namespace terrace {
namespace {

// The scheduler's whims are a large part of shorter steps.
constexpr double kComparedSecondsMin = 2e-3;
constexpr double kOffPlanRatio = 1.5;
constexpr int kOffPlanReports = 5;  // about a second apart: no single slow step counts

}  // namespace

std::string Reconciler::DoubtProfile(const v1::Job& job, double ratio) {
  std::string worker;
  for (const v1::Placement::Rank& rank : job.placement().ranks()) {
    if (!worker.empty() && rank.worker() != worker) return "";  // the network may be the cause
    worker = rank.worker();
  }
  if (worker.empty() || cluster_.HasOthers(worker, job.id())) return "";
  v1::CoordinatorMessage message;
  message.mutable_doubt_profile()->set_job(job.id());
  message.mutable_doubt_profile()->set_ratio(ratio);
  ports_.Send(worker, message);
  return worker;
}

void Reconciler::CompareWithPlan(Entry& entry, int64_t step_before) {
  const v1::Job& job = entry.job;
  const v1::HardwareProfile& profile = job.plan().profile();
  const double took = job.progress().step_seconds();
  const double planned = job.plan().time().step_seconds();
  const bool comparable = job.state() == v1::RUNNING && profile.measured() &&
                          job.progress().step() > step_before && planned > 0 &&
                          took >= kComparedSecondsMin;
  if (!comparable || entry.off_plan_told) return;
  const double ratio = took / planned;
  const bool off = ratio > kOffPlanRatio || ratio < 1 / kOffPlanRatio;
  entry.reports_off_plan = off ? entry.reports_off_plan + 1 : 0;
  if (entry.reports_off_plan < kOffPlanReports) return;
  entry.off_plan_told = true;
  v1::JobEvent event;
  event.set_job(job.id());
  event.set_epoch(job.epoch());
  event.set_unix_ms(clock_.UnixMillis());
  const std::string worker = DoubtProfile(job, ratio);
  event.mutable_warning()->set_text(absl::StrFormat(
      "a step takes %.3g s where the plan says %.3g s: something else runs on the machine now, or "
      "did when it was measured; %s",
      took, planned,
      worker.empty()
          ? "terrace profile --refresh measures it anew when it is quiet"
          : absl::StrCat("worker ", worker, " measures it anew once nothing runs there")));
  log::Warn("job ", job.id(), ": ", event.warning().text());
  StoreEvent(event);
}

}  // namespace terrace
