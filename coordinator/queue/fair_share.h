// The order of the queue: the priority that a job asks for, how long it has waited, and how much of
// the devices its owner has had.
//
// Usage is counted in device-seconds, each halved for every half-life that has passed since (as
// Slurm's multifactor plugin does). Of owners that want the devices each is due the same share: one
// that has had nothing gains 1, one that has had its share 0.5, and so on down to 0.
//
// Pure: the time is an argument. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/queue/options.h"

namespace terrace {

struct Usage {
  double device_seconds = 0;  // as of `unix_ms`
  int64_t unix_ms = 0;
};

// As of then. A half-life of 0: nothing is forgotten.
double DecayedSeconds(const Usage& usage, int64_t unix_ms, int64_t half_life_seconds);
// With so many more.
Usage WithUse(const Usage& usage, double device_seconds, int64_t unix_ms,
              int64_t half_life_seconds);

// Of an owner that has `usage` of the `total` device-seconds that `owners` owners have had.
double FairShareFactor(double usage, double total, size_t owners);

// By which the queue is ordered, the highest first.
double QueuePriority(int32_t asked, int64_t waited_ms, double fair_share_factor,
                     const QueueOptions& options);

}  // namespace terrace
