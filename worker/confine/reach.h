// What a rank reaches of the machine's files: a table, and what its job names.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "proto/job_roots.h"
#include "proto/v1/worker.pb.h"
#include "worker/confine/landlock.h"

namespace terrace {

// Of the system: libraries and what they read, devices, shared memory.
std::vector<ReachedPath> SystemPaths();

// What an interpreter of Python needs: itself, the system's programs and libraries.
std::vector<ReachedPath> PathsOfPython(const std::string& python);

// All that a rank with this configuration reaches. With roots it reads below those of data and
// checkpoints only; without any it reads what its user may. Either way it changes only what its job
// names for that, and its run directory.
LandlockRules ReachOf(const v1::RankConfig& config, const JobRoots& roots);

}  // namespace terrace
