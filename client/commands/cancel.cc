// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "client/commands/change_jobs.h"
#include "client/commands/commands.h"
#include "client/print.h"

namespace terrace {

int CancelCommand(const GlobalOptions& global, const CancelOptions& options) {
  JobChange change;
  change.arrays = options.arrays;
  change.ask = [&](Connection& connection, const std::string& job) {
    return connection.Cancel(job, options.force);
  };
  change.tell = [&](const v1::Job& job) {
    const char* id = job.id().c_str();
    if (HasEnded(job.state())) {
      std::printf("%s is %s\n", id, std::string(StateName(job.state())).c_str());
    } else {
      std::printf("%s stops%s; watch it with: terrace watch %s\n", id,
                  options.force ? " now" : " after this step, with a checkpoint", id);
    }
  };
  return ChangeJobs(global, options.jobs, change);
}

}  // namespace terrace
