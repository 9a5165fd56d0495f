// The checker's part on loops, before they are written out: ranges, trip counts and micro-batches
// make sense; which buffer a value of an iteration lies in, which row of an array an iteration
// touches and what a wait across iterations means can be said of every iteration; and what is
// written out is not too much.
//
// Out: how many iterations need not be looked at one by one (written.h). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/program/loops.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

inline constexpr int64_t kTripsMax = (int64_t{1} << 31) - 1;
// A value of so many iterations ago may be in use and waited for.
inline constexpr int64_t kBackWaitMax = kTurnMax;  // iterations
inline constexpr int64_t kSlotMax = kTurnMax;      // values before or behind iteration 0
// What a rank counts on one stream in 31 bits.
inline constexpr int64_t kPlayedMax = (int64_t{1} << 31) - 1;

// REQUIRES: CheckStructure passed, and CheckSchedule of each sequence. Afterwards loops can be
// written out.
absl::Status CheckLoops(const v1::Program& program);

// How many iterations all loops of all stages may leave out alike, so that those that are left show
// how stages wait for one another. Waits do not ask where values lie, so this is no multiple of a
// turn. REQUIRES: CheckLoops passed for each, here and below.
int64_t IterationsLeftOutAlike(absl::Span<const v1::Program> stages);

// How many the loops of a stage may leave out, so that those that are left show each rendezvous of
// values in the slots.
int64_t IterationsLeftOut(const v1::Program& program);

// Whether ranks of several stages sum something in an iteration: sums are compared over the stages,
// one by one, and none may be left out.
bool SumsOverStagesInLoops(const v1::Program& program);

// Written out so, the sequences stay within the limits of structure.h.
absl::Status CheckWrittenSize(const v1::Program& program, int64_t left_out);

}  // namespace terrace::check
