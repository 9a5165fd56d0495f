// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"

namespace terrace {

int CancelCommand(const GlobalOptions& global, const CancelOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto job = (*connection)->Cancel(options.job, options.force);
  if (!job.ok()) return Fail(global, job.status());
  if (global.json()) {
    PrintJson(*job);
  } else if (HasEnded(job->state())) {
    std::printf("%s is %s\n", job->id().c_str(), std::string(StateName(job->state())).c_str());
  } else {
    std::printf("%s stops%s; watch it with: terrace watch %s\n", job->id().c_str(),
                options.force ? " now" : " after this step, with a checkpoint", job->id().c_str());
  }
  return 0;
}

}  // namespace terrace
