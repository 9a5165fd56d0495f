// Jobs in a state and ranks as workers report them, for tests of the state machine.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "coordinator/life/job_state.h"

namespace terrace {

inline constexpr int64_t kNow = 1'000'000;

inline v1::Job JobIn(v1::JobState state) {
  v1::JobSpec spec;
  spec.set_name("a");
  spec.set_max_restarts(2);
  spec.mutable_train()->set_steps(100);
  v1::Job job = NewJob("a-1", spec, kNow);
  job.set_state(state);
  job.set_epoch(3);
  job.mutable_plan()->set_job("a-1");
  return job;
}

inline RankView Reported(uint32_t rank, v1::RankState state, v1::Reason reason = v1::REASON_NONE,
                         const std::string& message = "") {
  RankView view{.rank = rank, .worker = rank < 2 ? "w0" : "w1", .presence = Presence::kReported};
  view.report.set_rank(rank);
  view.report.set_epoch(3);
  view.report.set_state(state);
  view.report.set_reason(reason);
  view.report.set_message(message);
  return view;
}
inline RankView Absent(uint32_t rank, Presence presence) {
  return {.rank = rank, .worker = rank < 2 ? "w0" : "w1", .presence = presence};
}
inline RankView StoppedEarly(uint32_t rank) {
  RankView view = Reported(rank, v1::RANK_SUCCEEDED);
  view.report.set_stopped_early(true);
  return view;
}

inline v1::Job Next(const v1::Job& job, const JobInput& input) {
  auto transition = Apply(job, input, kNow + 1);
  EXPECT_TRUE(transition.ok()) << transition.status();
  return transition.ok() && transition->changed ? transition->job : job;
}

}  // namespace terrace
