// What buffers leave of whole pages, packed into rows of one page each.
//
// A whole page may lie anywhere, so whole pages only have to be counted. What is left of each
// buffer, less than a page, goes into a strip of rows, beside that of others. At every moment the
// whole pages and the rows in which anything lives must be no more than the memory has: an empty
// row is a page like any other. So what orders lose, they lose of a small part of the bytes.
//
// In: a problem, the bytes that lie in front of it all the time (what they leave of a page begins
// the first row), the page, the memory. Out: where in the strip each item's rest lies. Inside a
// buffer pieces end where pages do, so the rest of one that has whole pages touches the beginning
// or the end of a row, or both the end of one and the beginning of another: any other, for a row is
// a page, and pages lie anywhere. Deterministic, bounded by steps. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/compiler/pack_problem.h"
#include "coordinator/compiler/pack_strip.h"

namespace terrace {

struct RowRules {
  int64_t base_bytes = 0;
  int64_t page_bytes = 0;
  int64_t memory_bytes = 0;  // whole pages, at least the base
};

// Of items that are whole pages it means nothing. Takes what it looks at from `steps`.
std::optional<std::vector<RowPlace>> PackIntoRows(const PackProblem& problem, const RowRules& rules,
                                                  int64_t* steps);

// The same by ejections, where orders do not do: what finds no place takes one from others. Takes
// seconds rather than milliseconds.
std::optional<std::vector<RowPlace>> EjectIntoRows(const PackProblem& problem,
                                                   const RowRules& rules, int64_t* steps);

}  // namespace terrace
