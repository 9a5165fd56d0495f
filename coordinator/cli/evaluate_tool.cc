// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/evaluate_tool.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "coordinator/cli/offline.h"
#include "coordinator/cli/what_if.h"
#include "coordinator/evaluation/evaluation.h"
#include "coordinator/planning/plan_timer.h"
#include "proto/drawing/evaluation_page.h"
#include "proto/report/evaluation_progress.h"
#include "proto/report/evaluation_text.h"

namespace terrace {
namespace {

absl::StatusOr<v1::Evaluation> Evaluate(const EvaluateOptions& options) {
  JobHere job;
  std::string remark;
  if (options.cluster.empty()) {
    ASSIGN_OR_RETURN(job, ReadJobHere(options.spec, options.profile));
  } else {
    ASSIGN_OR_RETURN(WhatIfJob paper, ReadWhatIfJob(options.spec, options.cluster));
    job = {.spec = std::move(paper.spec), .budget = std::move(paper.budget)};
    remark = std::move(paper.why_not_runnable);
  }
  PlanTimer timer(options.seconds);
  EvaluationProgressLine shown(isatty(STDERR_FILENO) == 1);
  ASSIGN_OR_RETURN(
      v1::Evaluation evaluation,
      EvaluateJob(job.spec, job.budget,
                  {.brief = options.brief,
                   .goes_on = [&timer] { return timer.GoesOn(); },
                   .in_time = [&timer] { return timer.InTime(); },
                   .tell = [&shown](const v1::EvaluationProgress& now) { shown.Show(now); }}));
  evaluation.set_seconds(timer.Seconds());
  if (!remark.empty()) evaluation.add_remarks(remark);
  return evaluation;
}

}  // namespace

absl::Status PrintEvaluation(const EvaluateOptions& options) {
  ASSIGN_OR_RETURN(const v1::Evaluation evaluation, Evaluate(options));
  if (!options.html.empty()) {
    const std::string page = EvaluationPage(evaluation);
    RETURN_IF_ERROR(WriteOutput(options.html, page));
    std::fprintf(stderr, "wrote %s, %zu bytes\n", options.html.c_str(), page.size());
  }
  std::fputs((options.json ? EvaluationJson(evaluation) : EvaluationText(evaluation)).c_str(),
             stdout);
  return absl::OkStatus();
}

}  // namespace terrace
