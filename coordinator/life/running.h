// What follows for a job from what its ranks are seen to do while they run.
//
// Pure: the time is the mover's. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/types/span.h"
#include "coordinator/life/job_mover.h"
#include "coordinator/life/job_state.h"

namespace terrace {

// Whether `holds` of what each of them reports; not of ranks that are not reported.
bool All(absl::Span<const RankView> ranks, bool (*holds)(const v1::RankReport&));

// The gang stands still. Told once, in the words of when it was noticed.
Transition Hang(Mover mover, const v1::Hang& hang);

// REQUIRES: it is RUNNING, and its gang is whole.
Transition ObserveRunning(Mover mover, const RanksObserved& input);

}  // namespace terrace
