// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/commands/change_jobs.h"
#include "client/commands/commands.h"
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
  JobChange change;
  change.arrays = options.arrays;
  change.ask = [&](Connection& connection, const std::string& job) {
    return connection.Pause(job, options.force);
  };
  if (options.wait) change.await = AwaitPaused;
  change.tell = Tell;
  change.exit_code = [](const v1::Job& job) {
    return HasEnded(job.state()) ? ExitCodeOfJob(job) : 0;
  };
  return ChangeJobs(global, options.jobs, change);
}

int ResumeCommand(const GlobalOptions& global, const ResumeOptions& options) {
  std::set<std::string> not_paused;
  JobChange change;
  change.arrays = options.arrays;
  change.ask = [&](Connection& connection, const std::string& id) -> absl::StatusOr<v1::Job> {
    ASSIGN_OR_RETURN(const v1::Job before, connection.Get(id));
    if (before.state() != v1::PAUSED && !before.pause_requested()) not_paused.insert(id);
    return connection.Resume(id);
  };
  change.tell = [&](const v1::Job& job) {
    const char* id = job.id().c_str();
    const std::string state(StateName(job.state()));
    if (not_paused.contains(job.id())) {
      std::printf("%s was not paused: it is %s\n", id, state.c_str());
    } else if (job.resume_requested()) {
      std::printf("%s starts again once it has stopped for its pause\n", id);
    } else {
      std::printf("%s is resumed and %s; watch it with: terrace watch %s\n", id, state.c_str(), id);
    }
  };
  return ChangeJobs(global, options.jobs, change);
}

int RequeueCommand(const GlobalOptions& global, const RequeueOptions& options) {
  JobChange change;
  change.arrays = options.arrays;
  change.ask = [&](Connection& connection, const std::string& job) {
    return connection.Requeue(job, options.force);
  };
  change.tell = [](const v1::Job& job) {
    const char* id = job.id().c_str();
    if (job.resume_requested()) {
      std::printf("%s stops after this step, with a checkpoint, and waits in the queue\n", id);
    } else {
      std::printf("%s is %s\n", id, std::string(StateName(job.state())).c_str());
    }
  };
  return ChangeJobs(global, options.jobs, change);
}

}  // namespace terrace
