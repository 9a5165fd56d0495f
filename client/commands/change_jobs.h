// The part that cancel, pause and resume share: one thing is asked of several jobs, each is
// answered for itself, and a job that refuses does not keep those behind it from being asked.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/options.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct JobChange {
  bool arrays = false;  // also all others, not ended, of the arrays that the jobs are of
  std::function<absl::StatusOr<v1::Job>(Connection& connection, const std::string& job)> ask;
  // Called when all have been asked; what it returns is shown. Empty: there is nothing to wait for.
  std::function<absl::StatusOr<v1::Job>(Connection& connection, v1::Job job)> await;
  std::function<void(const v1::Job& job)> tell;      // for people
  std::function<int(const v1::Job& job)> exit_code;  // empty: 0
};

// A job that is named twice is asked once. With -o json each job and each error is a JSON value of
// its own. The exit code is the first that is not 0; a coordinator that does not answer is not
// asked for the jobs that are left.
int ChangeJobs(const GlobalOptions& global, const std::vector<std::string>& jobs,
               const JobChange& change);

}  // namespace terrace
