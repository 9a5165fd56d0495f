// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/pages.h"

#include <algorithm>
#include <utility>

#include "coordinator/compiler/pack/sweep.h"

namespace terrace {
namespace {

constexpr int64_t kCpuPageBytes = 4096;
constexpr int64_t kCpuPages = 16'384;
constexpr int64_t kLargePageBytes = int64_t{2} << 20;

// Ceilings, in ten-thousandths over the bound.
constexpr int64_t kCeilings[] = {50, 95, 100, 150, 200, 300, 400};
// The steps that the sweep below one ceiling may take, about a nanosecond each.
constexpr int64_t kSteps = 300'000'000;

// Whole pages, rising, below the `bytes` that one piece each takes.
std::vector<int64_t> CeilingsBetween(int64_t bound, int64_t bytes, const PageRules& rules) {
  std::vector<int64_t> ceilings;
  const int64_t page = rules.page_bytes;
  const auto add = [&](int64_t most) {
    const int64_t least = (bound + page - 1) / page * page;
    const int64_t ceiling = std::max(most / page * page, least);
    if (ceiling < bytes) ceilings.push_back(ceiling);
  };
  for (const int64_t part : kCeilings) add(bound + bound / 10'000 * part);
  if (rules.limit_bytes > 0) add(rules.limit_bytes);
  std::sort(ceilings.begin(), ceilings.end());
  ceilings.erase(std::unique(ceilings.begin(), ceilings.end()), ceilings.end());
  return ceilings;
}

std::optional<PagedPacking> PackBelow(absl::Span<const PagedProblem> problems,
                                      const PageRules& rules, int64_t ceiling) {
  PackAddresses addresses(rules.page_bytes, ceiling);
  PagedPacking packing = {.arena_bytes = ceiling};
  int64_t steps = kSteps;
  for (const PagedProblem& paged : problems) {
    packing.offsets.push_back(paged.offsets);
    if (!SweepIntoPages(paged.problem, rules.base_bytes, &packing.offsets.back(), &addresses,
                        &steps)) {
      return std::nullopt;
    }
  }
  packing.runs = addresses.Runs();
  return packing;
}

}  // namespace

int64_t PackPageBytes(std::string_view device, int64_t arena_bytes) {
  if (device == "cuda") return kLargePageBytes;
  int64_t bytes = kCpuPageBytes;
  while (bytes < kLargePageBytes && arena_bytes / bytes > kCpuPages) bytes *= 2;
  return bytes;
}

std::optional<PagedPacking> PackIntoPages(absl::Span<const PagedProblem> problems,
                                          const PageRules& rules) {
  int64_t bound = rules.base_bytes, bytes = rules.base_bytes;
  for (const PagedProblem& paged : problems) {
    bound = std::max(bound, rules.base_bytes + paged.problem.lower_bound_bytes);
    for (size_t i = 0; i < paged.offsets.size(); ++i) {
      bytes = std::max(bytes, rules.base_bytes + paged.offsets[i] + paged.problem.items[i].bytes);
    }
  }
  for (const int64_t ceiling : CeilingsBetween(bound, bytes, rules)) {
    std::optional<PagedPacking> packing = PackBelow(problems, rules, ceiling);
    if (packing.has_value()) return packing;
  }
  return std::nullopt;
}

}  // namespace terrace
