// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/time_limit.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text/duration.h"
#include "coordinator/life/job_state.h"

namespace terrace {
namespace {

// Of the last step that it has done, or else by its plan; 0: not known.
double StepSeconds(const v1::Job& job) {
  const double measured = job.progress().step_seconds();
  return measured > 0 ? measured : job.plan().time().step_seconds();
}

}  // namespace

double HeldSeconds(const v1::Job& job, int64_t unix_ms) {
  const bool holds = HoldsDevices(job.state()) && job.placed_unix_ms() > 0;
  const int64_t now_ms = holds ? std::max<int64_t>(0, unix_ms - job.placed_unix_ms()) : 0;
  return job.held_before_seconds() + static_cast<double>(now_ms) / 1000;
}

double RemainingSeconds(const v1::Job& job) {
  const int64_t left = job.spec().train().steps() - job.progress().step();
  return HasEnded(job.state()) ? 0
                               : static_cast<double>(std::max<int64_t>(0, left)) * StepSeconds(job);
}

std::optional<double> PlannedSeconds(const v1::Job& job, double held_seconds) {
  const bool stops =
      job.cancel_requested() || job.pause_requested() || job.time_limit_unix_ms() > 0;
  std::optional<double> seconds;
  if (StepSeconds(job) > 0) seconds = stops ? StepSeconds(job) : RemainingSeconds(job);
  if (const int64_t limit = job.spec().time_limit_seconds(); limit > 0) {
    const double left = std::max(0.0, static_cast<double>(limit) - held_seconds);
    seconds = std::min(left, seconds.value_or(left));
  }
  return seconds;
}

bool HasReachedTimeLimit(const v1::Job& job, int64_t unix_ms) {
  const int64_t limit = job.spec().time_limit_seconds();
  return limit > 0 && HoldsDevices(job.state()) &&
         HeldSeconds(job, unix_ms) >= static_cast<double>(limit);
}

std::string TimeLimitText(const v1::JobSpec& spec) {
  return absl::StrCat("time limit of ", SpanText(spec.time_limit_seconds()));
}

absl::StatusOr<int64_t> AdmittedTimeLimit(const v1::JobSpec& spec, const QueueOptions& options) {
  const int64_t asked = spec.time_limit_seconds();
  const int64_t most = options.time_limit_max_seconds;
  if (most > 0 && asked > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "time_limit: got ", SpanText(asked), ", and this coordinator allows at most ",
        SpanText(most),
        " (--time-limit-max): ask for less; a job that ends at its limit goes on from its last "
        "checkpoint when it is submitted again"));
  }
  if (asked > 0) return asked;
  const int64_t fallback = options.time_limit_default_seconds;
  return fallback > 0 ? fallback : most;
}

}  // namespace terrace
