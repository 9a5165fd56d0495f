// Packs the buffers of one arena with pages at second addresses (docs/packing.md), where offsets in
// one piece each leave too much unused.
//
// In: for each problem (sequences share an arena) its items and their offsets in one piece each,
// the bytes in front of them that are taken all the time, the size of a page. Out: memory and pages
// of one arena for all of them, and an address for every item: below arena_bytes it is the memory
// itself, the pages of `runs` follow. The first ceiling that does is kept: from 0.5 % over the
// bound on, what sticks out above it gets pages instead (sweep.h). Deterministic, bounded by
// steps. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/compiler/pack/addresses.h"
#include "coordinator/compiler/pack/problem.h"

namespace terrace {

// Of a device ("cuda", "cpu") for an arena of so many bytes: what the driver maps, or pages of the
// processor, as many together as keep an arena to some ten thousand.
int64_t PackPageBytes(std::string_view device, int64_t arena_bytes);

struct PagedProblem {
  PackProblem problem;
  std::vector<int64_t> offsets;  // of all items, in one piece each, from behind the base
};

struct PagedPacking {
  int64_t arena_bytes = 0;                    // with the base, whole pages
  std::vector<PackPageRun> runs;              // of the addresses behind them
  std::vector<std::vector<int64_t>> offsets;  // by problem: addresses, from behind the base
};

struct PageRules {
  int64_t base_bytes = 0;
  int64_t page_bytes = 0;
  int64_t limit_bytes = 0;  // that the arena should keep to; 0: none
};

// The first found that needs less than the problems in one piece.
std::optional<PagedPacking> PackIntoPages(absl::Span<const PagedProblem> problems,
                                          const PageRules& rules);

}  // namespace terrace
