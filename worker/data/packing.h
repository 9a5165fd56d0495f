// Which samples share a row, so that little of it is padding: best fit, longest first (Johnson
// 1974, "Fast algorithms for bin packing"; for sequences Krell et al. 2021, arXiv 2107.02027, and
// Ding et al. 2024, arXiv 2404.10830).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// Row r holds the samples order[first[r]], ..., order[first[r + 1] - 1].
struct PackedRows {
  std::vector<int64_t> order;
  std::vector<int64_t> first = {0};
  int64_t rows() const { return static_cast<int64_t>(first.size()) - 1; }
};

// Samples of so many tokens each into rows of `capacity` tokens: the longest first, of equal ones
// the first, each to the row with the least room that it fits into, of those to the latest. Takes
// O(n log capacity). REQUIRES: 1 <= tokens[i] <= capacity.
PackedRows PackBestFit(std::span<const int64_t> tokens, int64_t capacity);

}  // namespace terrace
