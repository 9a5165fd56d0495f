// Where the time of a job goes: each moment from its submission to its end is counted for one
// cause, so that the causes sum to the time that has passed.
//
// Time is counted when it is known what it was for. While a job waits, starts or recovers, its
// state says so, and while it is paused nothing is lost. While it runs, the end of a step says that
// the time since the last one was for training (or for doing again what a lost gang had done), but
// for what evaluations and checkpoints took of it; until that end it is not counted. Pure
// functions; no clock.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr std::array<std::string_view, 9> kSpentCauses = {
    "planning",   "queued",   "starting",   "training", "evaluating",
    "checkpoint", "repeated", "recovering", "paused"};

// What steps said that have ended since time was last counted.
struct StepsDone {
  bool any = false;
  double repeated_share = 0;      // of these steps, that an earlier gang had done: 0 to 1
  double evaluating_seconds = 0;  // training stood still meanwhile
  double checkpoint_seconds = 0;
};

// Counts the time of `before` until `unix_ms` in `after`, its next version, as far as it is known
// what it was for.
void CountTime(const v1::Job& before, const StepsDone& steps, int64_t unix_ms, v1::Job* after);

// Of a job until `unix_ms`, as far as it is known: by cause, in the order of kSpentCauses, and from
// its submission on, which is their sum.
struct SpentUntil {
  std::array<double, kSpentCauses.size()> seconds = {};
  double wall_seconds = 0;
};
SpentUntil TimeSpentUntil(const v1::Job& job, int64_t unix_ms);

// For as long as it was paused, also now.
double PausedSeconds(const v1::Job& job, int64_t unix_ms);

// The first step of a gang has ended: the first of the job, or since its last restart.
void NoteFirstStep(int64_t unix_ms, v1::Job* job);

// A paused job is resumed: how long a restart took that was under way leaves that out.
void NotePause(int64_t unix_ms, v1::Job* job);

}  // namespace terrace
