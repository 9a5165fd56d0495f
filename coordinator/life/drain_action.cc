// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/drain_action.h"

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

std::string InBrackets(const std::string& reason) {
  return reason.empty() ? "" : absl::StrCat(" (", reason, ")");
}

}  // namespace

DrainAction DrainActionOf(const v1::Job& job, const v1::Drain& drain, int64_t unix_ms) {
  const bool holds = job.state() == v1::STARTING || job.state() == v1::RUNNING;
  if (!holds) return {};
  DrainAction leaving{
      .how = DrainAction::How::kAtOnce,
      .why = absl::StrCat("worker ", drain.node(), " is drained", InBrackets(drain.reason()))};
  if (drain.deadline_unix_ms() > 0 && unix_ms >= drain.deadline_unix_ms()) return leaving;
  if (drain.keep_jobs()) return {};
  if (job.state() == v1::STARTING) return leaving;  // it has done nothing yet
  if (job.spec().checkpoint().save() == "never") return {};
  leaving.how = DrainAction::How::kAfterCheckpoint;
  return leaving;
}

std::string_view DrainedStateName(bool has_jobs) { return has_jobs ? "draining" : "drained"; }

std::string RemarkOf(const v1::Drain& drain) {
  return absl::StrCat("drained", InBrackets(drain.reason()), ": no job is placed here until ",
                      drain.until_restart() ? "its worker starts again or " : "", "`terrace drain ",
                      drain.node(), " --disable`");
}

}  // namespace terrace
