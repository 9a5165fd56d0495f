// SPDX-License-Identifier: Apache-2.0
#include "client/commands/change_jobs.h"

#include <map>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/job_pages.h"
#include "client/print.h"

namespace terrace {
namespace {

// In order of submission.
absl::StatusOr<std::vector<std::string>> WithArrays(Connection& connection,
                                                    const std::vector<std::string>& jobs) {
  std::set<std::string> arrays;
  for (const std::string& id : jobs) {
    ASSIGN_OR_RETURN(const v1::Job job, connection.Get(id));
    if (!job.has_array())
      return absl::InvalidArgumentError(absl::StrCat(
          "--array: got ", id, ", must be a job of an array (terrace submit --sweep)"));
    arrays.insert(job.array().array());
  }
  std::map<int64_t, std::string> by_number;
  for (const std::string& array : arrays) {
    v1::ListPageRequest request;
    request.set_array(array);
    RETURN_IF_ERROR(
        VisitPages(connection, request, /*limit=*/0, [&](const v1::ListPageResponse& page) {
          for (const v1::JobSummary& job : page.summaries()) by_number[job.number()] = job.id();
        }).status());
  }
  std::vector<std::string> named;
  for (const auto& [number, id] : by_number) named.push_back(id);
  if (named.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--array: all jobs of the sweep of ", jobs.front(), " have ended already"));
  }
  return named;
}

}  // namespace

int ChangeJobs(const GlobalOptions& global, const std::vector<std::string>& jobs,
               const JobChange& change) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  int first_code = 0;
  const auto note = [&first_code](int code) {
    if (first_code == 0) first_code = code;
  };
  const auto show = [&](const absl::StatusOr<v1::Job>& job) {
    if (!job.ok()) return note(Fail(global, job.status()));
    if (global.json()) {
      PrintJson(*job);
    } else {
      change.tell(*job);
    }
    if (change.exit_code) note(change.exit_code(*job));
  };
  std::vector<v1::Job> asked;  // to be waited for
  std::set<std::string> seen;
  const absl::StatusOr<std::vector<std::string>> named =
      change.arrays ? WithArrays(**connection, jobs) : jobs;
  if (!named.ok()) return Fail(global, named.status());
  for (const std::string& id : *named) {
    if (!seen.insert(id).second) continue;
    absl::StatusOr<v1::Job> job = change.ask(**connection, id);
    if (job.ok() && change.await) {
      asked.push_back(*std::move(job));
      continue;
    }
    show(job);
    if (absl::IsUnavailable(job.status())) break;
  }
  for (v1::Job& job : asked) show(change.await(**connection, std::move(job)));
  return first_code;
}

}  // namespace terrace
