// The order of the queue: the priority that a job asks for, how long it has waited, and how much of
// the devices its owner has had.
//
// Usage is counted in device-seconds, each of which is halved for every half-life that has passed
// since (as Slurm's multifactor plugin does). All owners that want the devices are due the same
// share: an owner that has had nothing gains 1, one that has had exactly its share gains 0.5, and
// the more an owner has had the closer its gain comes to 0.
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

// What the usage is worth at `unix_ms`. With a half-life of 0 nothing is forgotten.
double DecayedSeconds(const Usage& usage, int64_t unix_ms, int64_t half_life_seconds);
// The usage with `device_seconds` more.
Usage WithUse(const Usage& usage, double device_seconds, int64_t unix_ms,
              int64_t half_life_seconds);

// The factor of an owner that has had `usage` of the `total` device-seconds of `owners` owners.
double FairShareFactor(double usage, double total, size_t owners);

// The priority by which the queue is ordered, the highest first.
double QueuePriority(int32_t asked, int64_t waited_ms, double fair_share_factor,
                     const QueueOptions& options);

}  // namespace terrace
