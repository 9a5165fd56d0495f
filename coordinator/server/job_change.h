// A call that changes one job: the caller may do that to this job, and is answered with the job as
// it is then.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "coordinator/control/control.h"
#include "coordinator/server/unary_calls.h"
#include "proto/v1/job.pb.h"

namespace terrace {

template <typename Response>
absl::Status AnswerWith(absl::StatusOr<v1::Job> job, Response* response) {
  if (job.ok()) *response->mutable_job() = *std::move(job);
  return job.status();
}

class JobChanges {
 public:
  // Both are borrowed.
  JobChanges(Control& control, const UnaryCalls& calls) : control_(control), calls_(calls) {}

  // `change` runs on the loop, where the caller may do this to the job of the request.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Change(std::string_view method, grpc::CallbackServerContext* context,
                                   const Request& request, Response* response, bool force,
                                   std::function<absl::StatusOr<v1::Job>()> change) const {
    return calls_.OnLoop(
        method, context,
        [this, &request, response, force, change = std::move(change)](GuardedCall& call) {
          call.record.job = request.id();
          if (force) call.record.arguments["force"] = "true";
          const auto job = control_.reconciler().Get(request.id());
          RETURN_IF_ERROR(job.status());
          RETURN_IF_ERROR(calls_.guard().CheckJob(call, job->id(), job->owner()));
          return AnswerWith(change(), response);
        });
  }

 private:
  Control& control_;
  const UnaryCalls& calls_;
};

}  // namespace terrace
