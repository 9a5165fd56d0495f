// How a job gives its devices back, and what it says while it is asked to: for good, until it is
// resumed, to go back into the queue, or because its gang broke.
//
// Pure: the time is the mover's. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "coordinator/life/drain_action.h"
#include "coordinator/life/job_mover.h"
#include "coordinator/life/job_state.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// Its spec has no checkpoints.
bool SavesNothing(const v1::Job& job);
// It runs and stops to be PAUSED; otherwise one that stops goes back into the queue.
bool IsToPause(const v1::Job& job);
// "from the checkpoint of step 40".
std::string RestartPoint(const v1::Job& job);

// ---- what it says of itself until its ranks have stopped ----------------------------------------
std::string StopsText(const v1::Job& job);
std::string LimitText(const v1::Job& job);
std::string PausesText(const v1::Job& job);
// Of one that goes back into the queue.
std::string GivesBackText(const v1::Job& job);

// ---- its devices are free ---------------------------------------------------------------------
Transition Hold(Mover mover, std::string_view why = "");
Transition GiveBack(Mover mover);
// It had its devices for as long as its time limit allows.
Transition EndAtLimit(Mover mover, std::string_view why = "");
// Its worker is drained: again from the last checkpoint, on others. That is no failure, and counts
// as none.
Transition Move(Mover mover, const DrainAction& leaving);
// The gang is broken: again from the last checkpoint, if there are restarts left. `lost`: the rank
// that broke it, if it is known.
Transition Recover(Mover mover, v1::Reason reason, const std::string& what,
                   const RankView* lost = nullptr);

// In the record of the job's restarts.
void CountRestart(Mover* mover, v1::Reason reason, const std::string& message,
                  const RankView* lost);

}  // namespace terrace
