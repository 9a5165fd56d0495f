// A step of loops, told from steps of fewer iterations: plays longer and longer ones until the
// loops are steady, that is until as many iterations take every stream of every stage the same
// time, and then multiplies what the last play has more than the one before.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/simulator/simulate.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// The simulation of the step in which each loop has so many iterations fewer.
using PlayStep = std::function<absl::StatusOr<Simulation>(int64_t leave_out)>;

// REQUIRES: one of the stages has loops.
absl::StatusOr<Simulation> PlayUntilSteady(absl::Span<const v1::Program> stages,
                                           std::string_view sequence, const PlayStep& play);

// Fills what is of all stages from what is of each, but for the seconds of the step.
void Conclude(Simulation* simulation);

}  // namespace terrace
