// Packing with pages at second addresses: what no order of buffers fits into one piece of memory
// each is given one piece of addresses whose pages lie where there is room.
//
// In: the problems that share an arena (one a sequence, at different times), a placement of each,
// the bytes in front of them that are taken all the time, the size of a page. Out: memory and pages
// of one arena for all of them, and an address for every item: below arena_bytes it is the memory
// itself, the pages of `runs` follow. Ceilings from 0.5 % over the bound on; below each, one
// placement after the other gives up what sticks out, which gets pages instead (pack_sweep.h).
// Deterministic, bounded by steps. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/compiler/pack_addresses.h"
#include "coordinator/compiler/pack_problem.h"

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
  int64_t limit_bytes = 0;        // that the arena should keep to; 0: none
  int64_t steps = 2'000'000'000;  // about a nanosecond each
  // More of them where that leaves more than 1 % over the bound, for ejections (pack_rows.h).
  int64_t eject_steps = 12'000'000'000;
};

// The first found that needs less than the problems in one piece.
std::optional<PagedPacking> PackIntoPages(absl::Span<const PagedProblem> problems,
                                          const PageRules& rules);

}  // namespace terrace
