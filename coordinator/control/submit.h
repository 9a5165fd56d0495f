// Requests that need a planner: it reads, plans and draws; the control loop decides and stores.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "coordinator/control/control.h"
#include "proto/v1/evaluation.pb.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// `abandoned` is asked, from any thread, whether anybody waits for the answer until `done` is
// called, which is once, on the loop. INVALID_ARGUMENT: the spec is wrong. RESOURCE_EXHAUSTED: it
// does not fit. With dry_run the job has a plan and is not stored. When no registered worker could
// hold the job it is checked against what the spec asks for, and admitted without a plan.
void Submit(Control& control, const v1::SubmitRequest& request, const Submitted& as,
            std::function<bool()> abandoned, std::function<void(absl::StatusOr<v1::Job>)> done);

// The listing of a stored job's programs, or of what a YAML would compile to.
void Explain(Control& control, const v1::ExplainRequest& request, std::function<bool()> abandoned,
             std::function<void(absl::StatusOr<v1::ExplainResponse>)> done);

// What fits the hardware that a spec would get now, and what each technique costs. `tell` is told
// how far it is, on any thread. `done` is called once, on the loop.
void Evaluate(Control& control, const v1::EvaluateRequest& request, std::function<bool()> abandoned,
              std::function<void(const v1::EvaluationProgress&)> tell,
              std::function<void(absl::StatusOr<v1::Evaluation>)> done);

// The page of a stored job's plan (coordinator/report/html.h), with what its first rank measured
// beside it. FAILED_PRECONDITION: it has no program yet. `done` is called once, on the loop.
void DrawPlan(Control& control, const std::string& id,
              std::function<void(absl::StatusOr<std::string>)> done);

// What the spec alone says of the hardware.
Budget BudgetOfSpec(const v1::JobSpec& spec);

}  // namespace terrace
