// Changes state, reason and sentence of one job, so that each rule of its life (job_state.h) reads
// as one line. Copies the job only when something changes: jobs are large, and most of what is
// observed changes nothing.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "coordinator/life/job_state.h"
#include "proto/v1/job.pb.h"

namespace terrace {

class Mover {
 public:
  // Borrows the job.
  Mover(const v1::Job& job, int64_t unix_ms) : before_(job), unix_ms_(unix_ms) {}

  Transition Stay() { return std::move(next_); }
  Transition To(v1::JobState state, v1::Reason reason, std::string text);
  void LearnedOn(const std::string& worker) { next_.learned_on = worker; }

  // The job, to change more of it.
  v1::Job& Change() {
    if (!std::exchange(next_.changed, true)) next_.job = before_;
    return next_.job;
  }
  const v1::Job& job() const { return next_.changed ? next_.job : before_; }
  int64_t now() const { return unix_ms_; }

 private:
  const v1::Job& before_;
  Transition next_;
  int64_t unix_ms_;
};

}  // namespace terrace
