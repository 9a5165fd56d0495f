// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/waiting.h"

namespace terrace {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(500);
constexpr int kUnansweredMax = 60;  // looks, one after the other: a coordinator that restarts

bool IsToPause(const v1::Job& job) { return job.pause_requested() && !job.resume_requested(); }

// Until it is paused or has ended.
absl::StatusOr<v1::Job> AwaitPaused(Connection& connection, v1::Job job) {
  const Waiting waiting(absl::StrCat(job.id(), " to pause"));
  int unanswered = 0;
  while (IsToPause(job)) {
    std::this_thread::sleep_for(kLookEvery);
    auto now = connection.Get(job.id());
    const bool again = absl::IsUnavailable(now.status()) && ++unanswered < kUnansweredMax;
    if (again) continue;
    RETURN_IF_ERROR(now.status());
    unanswered = 0;
    job = *std::move(now);
  }
  if (job.state() == v1::PAUSED || HasEnded(job.state())) return job;
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " is not paused: somebody resumed it meanwhile"));
}

void Tell(const v1::Job& job) {
  const char* id = job.id().c_str();
  if (IsToPause(job)) {
    std::printf("%s pauses after this step, with a checkpoint; watch it with: terrace watch %s\n",
                id, id);
  } else if (job.state() == v1::PAUSED) {
    std::printf("%s is paused; let it go on with: terrace resume %s\n", id, id);
  } else {
    std::printf("%s is %s\n", id, std::string(StateName(job.state())).c_str());
  }
}

}  // namespace

int PauseCommand(const GlobalOptions& global, const PauseOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  auto job = (*connection)->Pause(options.job, options.force);
  if (job.ok() && options.wait) job = AwaitPaused(**connection, *std::move(job));
  if (!job.ok()) return Fail(global, job.status());
  if (global.json()) {
    PrintJson(*job);
  } else {
    Tell(*job);
  }
  return HasEnded(job->state()) ? ExitCodeOfJob(*job) : 0;
}

int ResumeCommand(const GlobalOptions& global, const JobOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto before = (*connection)->Get(options.job);
  if (!before.ok()) return Fail(global, before.status());
  const auto job = (*connection)->Resume(options.job);
  if (!job.ok()) return Fail(global, job.status());
  const bool was_paused = before->state() == v1::PAUSED || before->pause_requested();
  const std::string state(StateName(job->state()));
  if (global.json()) {
    PrintJson(*job);
  } else if (!was_paused) {
    std::printf("%s was not paused: it is %s\n", job->id().c_str(), state.c_str());
  } else if (job->resume_requested()) {
    std::printf("%s starts again once it has stopped for its pause\n", job->id().c_str());
  } else {
    std::printf("%s is resumed and %s; watch it with: terrace watch %s\n", job->id().c_str(),
                state.c_str(), job->id().c_str());
  }
  return 0;
}

}  // namespace terrace
