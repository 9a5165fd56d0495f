// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_cells.h"

#include <algorithm>
#include <map>
#include <utility>

#include "coordinator/compiler/occupancy.h"

namespace terrace {
namespace {

// Cells are the sizes that take most of the space over time, so many of them, whole and divided by
// up to so much.
constexpr size_t kSizes = 16;
constexpr int64_t kDivisors = 32;
constexpr int64_t kMostCells = 16'384;
// What is less than one part in so many of a cell is small.
constexpr int64_t kSmallPart = 4;

bool IsSmall(const PackItem& item, int64_t cell) { return item.bytes * kSmallPart < cell; }

std::vector<int64_t> CellSizes(const PackProblem& problem, int64_t ceiling) {
  std::map<int64_t, int64_t> area_of;  // by size
  for (const PackItem& item : problem.items) {
    area_of[item.bytes] += item.bytes / kPackAlignment * item.life();
  }
  std::vector<std::pair<int64_t, int64_t>> largest;
  for (const auto& [bytes, area] : area_of) largest.push_back({-area, bytes});
  std::sort(largest.begin(), largest.end());
  if (largest.size() > kSizes) largest.resize(kSizes);
  std::vector<int64_t> cells;
  for (const auto& [area, bytes] : largest) {
    for (int64_t divisor = 1; divisor <= kDivisors; ++divisor) {
      const int64_t cell = bytes / divisor;
      if (bytes % divisor == 0 && cell % kPackAlignment == 0 && ceiling / cell <= kMostCells) {
        cells.push_back(cell);
      }
    }
  }
  std::sort(cells.rbegin(), cells.rend());
  cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
  return cells;
}

// What is left below the ceiling at the fullest moment, when large items are rounded up.
int64_t Room(const PackProblem& problem, int64_t ceiling, int64_t cell) {
  std::vector<int64_t> large(problem.slots + 1), small(problem.slots + 1);  // changes
  for (const PackItem& item : problem.items) {
    std::vector<int64_t>& change = IsSmall(item, cell) ? small : large;
    const int64_t bytes = IsSmall(item, cell) ? item.bytes : (item.bytes + cell - 1) / cell * cell;
    change[item.begin] += bytes;
    change[item.end] -= bytes;
  }
  int64_t large_now = 0, small_now = 0, large_most = 0, small_most = 0;
  for (int s = 0; s < problem.slots; ++s) {
    large_most = std::max(large_most, large_now += large[s]);
    small_most = std::max(small_most, small_now += small[s]);
  }
  return (ceiling - small_most) / cell * cell - large_most;
}

// Largest first, each as low as it can lie.
void PlaceSmall(const PackProblem& problem, PackCells* cells) {
  std::stable_sort(cells->small.begin(), cells->small.end(),
                   [&](int a, int b) { return problem.items[a].bytes > problem.items[b].bytes; });
  Occupancy occupancy(problem.slots);
  for (const int i : cells->small) {
    const PackItem& item = problem.items[i];
    const int64_t offset = occupancy.FindLowest(item.begin, item.end, item.bytes);
    occupancy.Take(item.begin, item.end, offset, item.bytes);
    cells->small_offsets.push_back(offset);
    cells->small_bytes = std::max(cells->small_bytes, offset + item.bytes);
  }
}

}  // namespace

PackCells MakePackCells(const PackProblem& problem, int64_t ceiling_bytes, int room_percent) {
  const std::vector<int64_t> sizes = CellSizes(problem, ceiling_bytes);
  std::vector<int64_t> rooms;
  int64_t most = -1;
  for (const int64_t size : sizes) {
    rooms.push_back(Room(problem, ceiling_bytes, size));
    most = std::max(most, rooms.back());
  }
  PackCells cells;
  if (most < 0) return cells;
  size_t k = 0;
  while (rooms[k] < 0 || rooms[k] * 100 < most * room_percent) ++k;
  cells.cell_bytes = sizes[k];
  for (int i = 0; i < static_cast<int>(problem.items.size()); ++i) {
    (IsSmall(problem.items[i], sizes[k]) ? cells.small : cells.large).push_back(i);
  }
  PlaceSmall(problem, &cells);
  cells.cells = static_cast<int>((ceiling_bytes - cells.small_bytes) / cells.cell_bytes);
  // Small items may take more than is alive of them at one time.
  const bool fits = std::all_of(cells.large.begin(), cells.large.end(), [&](int i) {
    return problem.items[i].bytes <= cells.cells * cells.cell_bytes;
  });
  return fits ? cells : PackCells{};
}

}  // namespace terrace
