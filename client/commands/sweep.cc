// SPDX-License-Identifier: Apache-2.0
#include "client/sweep.h"

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/job_pages.h"
#include "client/print.h"
#include "client/spec_file.h"
#include "client/table.h"
#include "client/waiting.h"

namespace terrace {
namespace {

absl::Status OfMember(const v1::ArrayMember& member, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("job ", member.index() + 1, " of ", member.size(), " (",
                                   ValuesText(member), "): ", status.message()));
}

// Checks and plans all jobs before the first is submitted, so that one that is wrong leaves no half
// of a sweep behind. The coordinator keeps the plans and does not make them twice.
absl::Status Check(Connection& connection, v1::SubmitMemberRequest request,
                   const std::vector<v1::ArrayMember>& members, Waiting& waiting) {
  request.mutable_submission()->set_dry_run(true);
  std::map<std::string, const v1::ArrayMember*> directories;
  for (const v1::ArrayMember& member : members) {
    waiting.Say(absl::StrCat("checking job ", member.index() + 1, " of ", members.size()));
    *request.mutable_member() = member;
    const absl::StatusOr<v1::Job> job = connection.SubmitMember(request);
    if (!job.ok()) return OfMember(member, job.status());
    const std::string& directory = job->spec().checkpoint().directory();
    const auto [other, is_new] = directories.try_emplace(directory, &member);
    if (!is_new) {
      return OfMember(member, absl::InvalidArgumentError(absl::StrCat(
                                  "checkpoint.directory: got ", directory, ", as job ",
                                  other->second->index() + 1, " has; must be one of its own")));
    }
  }
  return absl::OkStatus();
}

// `jobs` has the jobs that the coordinator took, also where it refuses a later one.
absl::Status SubmitAll(Connection& connection, v1::SubmitMemberRequest request,
                       const std::vector<v1::ArrayMember>& members, Waiting& waiting,
                       v1::ListJobsResponse* jobs) {
  for (const v1::ArrayMember& member : members) {
    waiting.Say(absl::StrCat("submitting job ", member.index() + 1, " of ", members.size()));
    *request.mutable_member() = member;
    if (jobs->jobs_size() > 0) request.mutable_member()->set_array(jobs->jobs(0).id());
    absl::StatusOr<v1::Job> job = connection.SubmitMember(request);
    if (!job.ok()) return OfMember(member, job.status());
    *jobs->add_jobs() = *std::move(job);
  }
  return absl::OkStatus();
}

void Tell(const v1::ListJobsResponse& jobs) {
  Table table({"JOB", "STATE", "VALUES"});
  for (const v1::Job& job : jobs.jobs())
    table.Add({job.id(), std::string(StateName(job.state())), ValuesText(job.array())});
  std::fputs(table.ToString().c_str(), stdout);
  if (jobs.jobs_size() > 0)
    std::printf("compare them with: terrace sweep %s\n", jobs.jobs(0).id().c_str());
}

// ---- the table of a sweep ---------------------------------------------------------------------

// The best so far, or the last one.
double EvalLoss(const v1::Progress& progress) {
  return progress.best_eval_step() > 0 ? progress.best_eval_loss() : progress.eval_loss();
}
bool HasEval(const v1::Progress& progress) {
  return progress.best_eval_step() > 0 || progress.eval_step() > 0;
}

const v1::Job* BestOf(const v1::ListJobsResponse& jobs) {
  const v1::Job* best = nullptr;
  for (const v1::Job& job : jobs.jobs()) {
    if (!HasEval(job.progress())) continue;
    if (best == nullptr || EvalLoss(job.progress()) < EvalLoss(best->progress())) best = &job;
  }
  return best;
}

void Show(const v1::ListJobsResponse& jobs) {
  std::vector<std::string> headers = {"JOB"};
  for (const v1::ArrayMember::Value& value : jobs.jobs(0).array().values())
    headers.push_back(value.key());
  for (const char* header : {"STATE", "STEP", "LOSS", "VALIDATION", "TOKENS/S"})
    headers.emplace_back(header);
  Table table(std::move(headers));
  const v1::Job* best = BestOf(jobs);
  for (const v1::Job& job : jobs.jobs()) {
    const v1::Progress& progress = job.progress();
    std::vector<std::string> cells = {job.id()};
    for (const v1::ArrayMember::Value& value : job.array().values()) cells.push_back(value.value());
    cells.emplace_back(StateName(job.state()));
    cells.push_back(absl::StrCat(progress.step(), "/", job.spec().train().steps()));
    cells.push_back(HasStepped(progress) ? absl::StrFormat("%.4f", progress.loss()) : "-");
    cells.push_back(HasEval(progress)
                        ? absl::StrFormat("%.4f%s", EvalLoss(progress), &job == best ? " *" : "")
                        : "-");
    cells.push_back(HasStepped(progress) ? FormatCount(progress.tokens_per_second()) : "-");
    table.Add(std::move(cells));
  }
  std::fputs(table.ToString().c_str(), stdout);
  if (best != nullptr)
    std::printf("* the lowest validation loss: %s (%s)\n", best->id().c_str(),
                ValuesText(best->array()).c_str());
  const auto missing = static_cast<int>(jobs.jobs(0).array().size()) - jobs.jobs_size();
  if (missing > 0) std::printf("%d of the sweep's jobs were never submitted\n", missing);
}

// All jobs of the array that `id` is of, in their order.
absl::StatusOr<v1::ListJobsResponse> SweepWith(Connection& connection, const std::string& id) {
  ASSIGN_OR_RETURN(const v1::Job job, connection.Get(id));
  if (!job.has_array())
    return absl::InvalidArgumentError(
        absl::StrCat("job ", id, " is of no sweep: terrace submit --sweep makes one"));
  v1::ListPageRequest request;
  request.set_all(true);
  request.set_array(job.array().array());
  request.set_whole(true);
  v1::ListJobsResponse sweep;
  RETURN_IF_ERROR(
      VisitPages(connection, request, /*limit=*/0, [&](const v1::ListPageResponse& page) {
        sweep.mutable_jobs()->MergeFrom(page.jobs());
      }).status());
  std::reverse(sweep.mutable_jobs()->begin(), sweep.mutable_jobs()->end());
  return sweep;
}

}  // namespace

int SubmitSweep(const GlobalOptions& global, const SubmitOptions& options,
                const std::vector<v1::Dependency>& dependencies) {
  const auto members = SweepOf(options.sweeps, options.running_max);
  if (!members.ok()) return Fail(global, members.status());
  const auto submission = ReadSpecFile(options.spec_path);
  if (!submission.ok()) return Fail(global, submission.status());
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  v1::SubmitMemberRequest request;
  *request.mutable_submission() = *submission;
  *request.mutable_dependencies() = {dependencies.begin(), dependencies.end()};
  request.set_hold(options.hold);
  v1::ListJobsResponse jobs;
  absl::Status status;
  {
    Waiting waiting("planning");
    status = Check(**connection, request, *members, waiting);
    if (status.ok()) status = SubmitAll(**connection, request, *members, waiting, &jobs);
  }
  if (jobs.jobs_size() > 0) {
    if (global.json()) {
      PrintJson(jobs);
    } else {
      Tell(jobs);
    }
  }
  return status.ok() ? 0 : Fail(global, status);
}

int SweepCommand(const GlobalOptions& global, const JobOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto sweep = SweepWith(**connection, options.job);
  if (!sweep.ok()) return Fail(global, sweep.status());
  if (global.json()) {
    PrintJson(*sweep);
  } else {
    Show(*sweep);
  }
  return 0;
}

}  // namespace terrace
