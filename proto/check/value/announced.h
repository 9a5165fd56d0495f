// What the initializers of a program announce of its tensors, on all stages: how they begin, the
// types of weights, moments and residuals, and what is frozen. Checkpoints hold what is announced,
// so the state must be that.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// `weights`: elements of those of this stage, by name. REQUIRES: the ranges of the state are valid
// one by one (state.h).
absl::Status CheckAnnounced(const v1::Program& program,
                            const std::map<std::string, int64_t>& weights);

// Names of the tensors that no step may change, of scales too.
std::set<std::string> FrozenTensors(const v1::Program& program);

}  // namespace terrace::check
