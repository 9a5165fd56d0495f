// A call that hands in a job: planned, then stored, and answered with the job.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string_view>
#include <utility>

#include "coordinator/control/submit.h"
#include "coordinator/server/unary_calls.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// What a submission needs beside its request. The first two are borrowed and outlive the call.
struct Submission {
  Control& control;
  const UnaryCalls& calls;
  std::string_view method;
  Submitted as = {};  // its owner is the caller
};

template <typename Response>
grpc::ServerUnaryReactor* PlanAndSubmit(const Submission& submission,
                                        grpc::CallbackServerContext* context,
                                        const v1::SubmitRequest& request, Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();  // may be asked for once only
  std::shared_ptr<GuardedCall> call = submission.calls.guard().Begin(submission.method, *context);
  call->changes = !request.dry_run();
  call->record.arguments["base_directory"] = request.base_directory();
  auto finish = submission.calls.Finisher(call, reactor);
  Submitted as = submission.as;
  as.owner = call->record.caller.User();
  Submit(
      submission.control, request, as, [context] { return context->IsCancelled(); },
      [response, call, finish](absl::StatusOr<v1::Job> job) {
        if (job.ok()) call->record.job = job->id();
        if (job.ok()) *response->mutable_job() = *std::move(job);
        finish(job.status());
      });
  return reactor;
}

}  // namespace terrace
