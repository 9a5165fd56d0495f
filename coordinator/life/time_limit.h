// How long a job has its devices: what it had, what its time limit allows, and what its steps will
// take.
//
// The limit counts the time in which the job holds devices, over all its gangs; while it waits or
// is paused no time is counted. At the limit it stops after its present step with a checkpoint.
//
// Pure: the time is an argument. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/queue/options.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// For the last step and its checkpoint of a job that has reached its limit; then it ends without.
inline constexpr int64_t kTimeLimitGraceMs = 300'000;

// Seconds that it had its devices until `unix_ms`.
double HeldSeconds(const v1::Job& job, int64_t unix_ms);

// Seconds that the steps which are left take, by the last step that it has done, or else by its
// plan. 0: none are left, or nothing is known.
double RemainingSeconds(const v1::Job& job);

// That it is planned to hold devices from now on, where it has held them for `held_seconds`: by the
// steps that are left and by its time limit, whichever ends first. Nothing: there is neither a
// limit nor a planned time of a step.
std::optional<double> PlannedSeconds(const v1::Job& job, double held_seconds);

// It holds its devices, and has for as long as its limit allows.
bool HasReachedTimeLimit(const v1::Job& job, int64_t unix_ms);

// "time limit of 2h30m".
std::string TimeLimitText(const v1::JobSpec& spec);

// The limit that the spec gets: its own, or the coordinator's default. INVALID_ARGUMENT: its own is
// longer than the coordinator allows.
absl::StatusOr<int64_t> AdmittedTimeLimit(const v1::JobSpec& spec, const QueueOptions& options);

}  // namespace terrace
