// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job_row.h"

#include "coordinator/life/job_state.h"
#include "proto/report/layout_text.h"

namespace terrace {

JobRow RowOf(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  JobRow row{.id = job.id(),
             .name = job.spec().name(),
             .state = job.state(),
             .reason = job.reason(),
             .message = job.message(),
             .number = NumberOf(job.id()),
             .submitted_unix_ms = job.submitted_unix_ms(),
             .started_unix_ms = job.started_unix_ms(),
             .finished_unix_ms = job.finished_unix_ms(),
             .resumed_unix_ms = job.resumed_unix_ms(),
             .step = progress.step(),
             .steps = job.spec().train().steps(),
             .loss = progress.loss(),
             .eval_loss = progress.eval_loss(),
             .has_eval = progress.eval_step() > 0,
             .tokens_per_second = progress.tokens_per_second(),
             .step_seconds = progress.step_seconds(),
             .precision = job.spec().train().precision(),
             .restarts = job.restarts()};
  if (job.has_plan()) {
    row.ranks = job.plan().layout().ranks();
    row.parameters = job.plan().model().parameters();
    row.layout = LayoutText(job.plan().layout());
  }
  return row;
}

}  // namespace terrace
