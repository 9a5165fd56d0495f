// Packing problems small enough to try every order, and the optimum by doing so. For tests of the
// packer.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "coordinator/compiler/pack_orders.h"

namespace terrace {

inline std::vector<PackBuffer> RandomTinyBuffers(uint32_t seed, int count) {
  std::mt19937 random(seed);
  std::vector<PackBuffer> buffers;
  for (int i = 0; i < count; ++i) {
    const int64_t bytes = 256 * (1 + static_cast<int64_t>(random() % 5));
    const int64_t begin = random() % 8;
    const int64_t life = 1 + random() % 4;
    buffers.push_back(
        {.name = std::to_string(i), .bytes = bytes, .begin = begin, .end = begin + life});
  }
  return buffers;
}

// One of the rare ones of 9 buffers whose optimum lies above the lower bound.
inline constexpr uint32_t kSeedWithoutPackingAtTheBound = 15893;

// Some order of lowest-offset placement is optimal: let the items of an optimal packing fall, in
// the order of their offsets.
inline int64_t OptimumByAllOrders(const PackProblem& problem) {
  std::vector<int> order(problem.items.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t best = std::numeric_limits<int64_t>::max();
  do {
    best = std::min(best, PlaceInOrder(problem, order).arena_bytes);
  } while (best > problem.lower_bound_bytes && std::next_permutation(order.begin(), order.end()));
  return best;
}

}  // namespace terrace
