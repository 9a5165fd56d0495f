// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job_summary.h"

#include "coordinator/life/job_state.h"
#include "coordinator/life/time_limit.h"
#include "proto/report/layout_text.h"

namespace terrace {

v1::JobSummary SummaryOf(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  v1::JobSummary row;
  row.set_id(job.id());
  row.set_number(NumberOf(job.id()));
  row.set_name(job.spec().name());
  row.set_owner(job.owner());
  row.set_array(job.array().array());
  row.set_state(job.state());
  row.set_reason(job.reason());
  row.set_message(job.message());
  row.set_submitted_unix_ms(job.submitted_unix_ms());
  row.set_started_unix_ms(job.started_unix_ms());
  row.set_finished_unix_ms(job.finished_unix_ms());
  row.set_resumed_unix_ms(job.resumed_unix_ms());
  row.set_step(progress.step());
  row.set_steps(job.spec().train().steps());
  row.set_loss(progress.loss());
  if (progress.eval_step() > 0) row.set_eval_loss(progress.eval_loss());
  row.set_tokens_per_second(progress.tokens_per_second());
  row.set_step_seconds(progress.step_seconds());
  row.set_precision(job.spec().train().precision());
  row.set_restarts(job.restarts());
  row.set_time_limit_seconds(job.spec().time_limit_seconds());
  row.set_remaining_seconds(RemainingSeconds(job));
  row.set_estimated_start_unix_ms(job.estimated_start_unix_ms());
  row.set_estimate(job.estimate());
  if (job.has_plan()) {
    row.set_ranks(job.plan().layout().ranks());
    row.set_parameters(job.plan().model().parameters());
    row.set_layout(LayoutText(job.plan().layout()));
  }
  return row;
}

}  // namespace terrace
