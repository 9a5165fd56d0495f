// What a pipeline stage holds of its passes at the fullest moments of a schedule: counts of layers,
// before anything is known of their bytes. A test compares them with the order that the compiler
// makes.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "proto/v1/plan.pb.h"

namespace terrace {

struct HeldLayers {     // each counts as often as passes over it are held
  int64_t kept = 0;     // for a backward pass to come
  int64_t put_off = 0;  // for weight gradients alone, which split backward passes put off
};

// The stage holds the most at one of these moments, whichever weighs more; some may be empty.
using HeldMoments = std::array<HeldLayers, 3>;

// `chunk_layers` are those of the stage's own chunks, in order.
HeldMoments HeldMomentsOf(const v1::Layout& layout, int64_t stage,
                          std::span<const int64_t> chunk_layers);

}  // namespace terrace
