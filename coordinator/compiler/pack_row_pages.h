// Gives whole pages and rows of rests (pack_rows.h) their pages of memory, and buffers addresses.
//
// A row that is not empty is a piece like a whole page: both have a life, and pieces get pages in
// the order of their births, so that memory that is enough at every moment is enough. A row keeps
// its page where it can, and buffers take addresses that name the right pages already, so that
// there are few second addresses. Deterministic. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/compiler/pack_addresses.h"
#include "coordinator/compiler/pack_problem.h"
#include "coordinator/compiler/pack_strip.h"

namespace terrace {

// `rests`: where in the strip of rows each item's rest lies, as PackIntoRows gives it. Out: offsets
// from behind the base. None where there would be too many addresses; `addresses` are then of no
// use. Takes what it looks at from `steps`.
std::optional<std::vector<int64_t>> PlaceOnPages(const PackProblem& problem, int64_t base_bytes,
                                                 absl::Span<const RowPlace> rests,
                                                 PackAddresses* addresses, int64_t* steps);

}  // namespace terrace
