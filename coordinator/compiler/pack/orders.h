// Greedy packing: items go one after the other to the lowest offset that is free during their life.
// The order decides how well that works; these are the orders, the likeliest winners first
// (docs/packing.md says which wins where).
//
// In: a problem and an order. Out: offsets. Deterministic: integer keys, ties by index. Items that
// live in every slot always come first: they can lie nowhere better. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "coordinator/compiler/pack/problem.h"

namespace terrace {

// A class is a power of two: items of about the same size or life go in by time, so that they
// dovetail.
enum class PackKey {
  kSize,            // largest first, then birth
  kSizeEnd,         // largest first, then death, last first
  kSizeClassStart,  // by size class, then birth
  kLifeClassStart,  // by life class, longest first, then birth
  kLifeClassSize,   // by life class, longest first, then size
  kLongThenSize,    // the longest `long_percent` % by birth, the rest by size
};

struct PackStrategy {
  PackKey key = PackKey::kSize;
  int long_percent = 0;
};

// REQUIRES: at least one item, here and below.
absl::Span<const PackStrategy> PackPortfolio();

std::vector<int> MakePackOrder(const PackProblem& problem, const PackStrategy& strategy);

PackPlacement PlaceInOrder(const PackProblem& problem, absl::Span<const int> order);

}  // namespace terrace
