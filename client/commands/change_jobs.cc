// SPDX-License-Identifier: Apache-2.0
#include "client/commands/change_jobs.h"

#include <set>
#include <utility>

#include "client/print.h"

namespace terrace {

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
  for (const std::string& id : jobs) {
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
