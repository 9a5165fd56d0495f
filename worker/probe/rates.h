// From seconds to the figures of a profile, for probes of any device.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "proto/v1/hardware.pb.h"
#include "worker/probe/cases.h"

namespace terrace {

// A step takes the sum of its calls as they come, in the machine's fast moments and in its slow
// ones: of turns, which lie apart, their mean. The shortest and the longest quarter are left out,
// from three turns on at least one each: a short call that lost its processor for some milliseconds
// would tell a hundred times its own seconds. 0 for none.
double MeanWithoutExtremes(std::vector<double> turns);

// How far the turns of one case lie apart, slowest over fastest, in the median of the cases; 1
// where none has two turns.
double SpreadOf(const std::vector<std::vector<double>>& turns_of_cases);

// Adds what the case reached; products also raise the profile's figures for those who know no
// tables. Nothing for seconds of 0.
void AddRate(const ProbeCase& one, double seconds, v1::HardwareProfile* profile);

// To the rate added last, which is the case's: what it reached with operands in the cache. Nothing
// for seconds of 0.
void AddCachedRate(const ProbeCase& one, double seconds, v1::HardwareProfile* profile);

// A sum of two vectors: nothing but memory.
ProbeCase StreamCase(int64_t elements);
void SetMemoryRate(const ProbeCase& stream, double seconds, v1::HardwareProfile* profile);

}  // namespace terrace
