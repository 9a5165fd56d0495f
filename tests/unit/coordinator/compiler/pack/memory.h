// Judges packings with pages at second addresses in the plainest way: the memory behind every
// address, byte range by byte range, and all pairs that meet. Knows nothing of the packer's own
// classes. For tests and benchmarks.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/pack/pages.h"

namespace terrace {

using MemoryRanges = std::vector<std::pair<int64_t, int64_t>>;

// Page by page.
inline MemoryRanges MemoryBehind(const PagedPacking& packing, int64_t page_bytes, int64_t address,
                                 int64_t bytes) {
  std::vector<int64_t> pages;  // by page of addresses, the page of memory
  for (int64_t p = 0; p < packing.arena_bytes / page_bytes; ++p) pages.push_back(p);
  for (const PackPageRun& run : packing.runs) {
    for (int64_t p = 0; p < run.pages; ++p) pages.push_back(run.page + p);
  }
  MemoryRanges ranges;
  while (bytes > 0) {
    const int64_t page = address / page_bytes, inside = address % page_bytes;
    const int64_t taken = std::min(bytes, page_bytes - inside);
    if (address < 0 || page >= static_cast<int64_t>(pages.size())) return {{-1, -1}};
    const int64_t begin = pages[page] * page_bytes + inside;
    ranges.emplace_back(begin, begin + taken);
    address += taken;
    bytes -= taken;
  }
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

// Both sorted.
inline bool ShareAByte(const MemoryRanges& a, const MemoryRanges& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].first < b[j].second && b[j].first < a[i].second) return true;
    a[i].second <= b[j].second ? ++i : ++j;
  }
  return false;
}

// What is wrong with the packing of one problem, as text; empty: nothing.
inline std::string FirstFault(const PackProblem& problem, int64_t base_bytes, int64_t page_bytes,
                              const PagedPacking& packing, const std::vector<int64_t>& offsets) {
  if (packing.arena_bytes % page_bytes != 0) return "memory is not whole pages";
  std::vector<MemoryRanges> memory;
  for (size_t i = 0; i < problem.items.size(); ++i) {
    if (offsets[i] % kPackAlignment != 0) return absl::StrCat(i, " is not aligned");
    memory.push_back(
        MemoryBehind(packing, page_bytes, base_bytes + offsets[i], problem.items[i].bytes));
    int64_t end = base_bytes;
    for (const auto& [from, to] : memory.back()) {
      if (from < end) return absl::StrCat(i, " has a byte twice, or lies in front of the base");
      end = to;
    }
    if (end > packing.arena_bytes) return absl::StrCat(i, " ends above the memory");
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const PackItem &a = problem.items[i], &b = problem.items[j];
      if (a.begin < b.end && b.begin < a.end && ShareAByte(memory[i], memory[j])) {
        return absl::StrCat(j, " and ", i, " share bytes");
      }
    }
  }
  return "";
}

}  // namespace terrace
