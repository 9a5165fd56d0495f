// SPDX-License-Identifier: Apache-2.0
#include "proto/state_layout.h"

#include <algorithm>

#include "kernels/tensor_view.h"

namespace terrace {
namespace {

uint32_t SplitBlock(const v1::StateRange& range) { return std::max(1u, range.split_block()); }

// A piece of the region [0, elements) that the rank holds from `first` on.
struct Window {
  int64_t first = 0;
  int64_t end = INT64_MAX;
};

Window WindowOf(const v1::StateRange& range, const v1::Grid& grid, const Coordinates& rank) {
  if (range.shard_elements() == 0) return {};
  const int64_t first = ShardIndex(grid, rank) * range.shard_elements();
  return {first, first + range.shard_elements()};
}

// Appends elements [begin, begin + elements) of the tensor, which lie at element `position` of the
// region.
void Append(const Window& window, int64_t begin, int64_t elements, int64_t position,
            int64_t element_bytes, std::vector<StateRun>* runs) {
  const int64_t first = std::max(position, window.first);
  const int64_t end = std::min(position + elements, window.end);
  if (first >= end) return;
  const StateRun run = {.begin = begin + (first - position),
                        .elements = end - first,
                        .offset = (first - window.first) * element_bytes};
  if (!runs->empty()) {
    StateRun& last = runs->back();
    if (last.begin + last.elements == run.begin &&
        last.offset + last.elements * element_bytes == run.offset) {
      last.elements += run.elements;
      return;
    }
  }
  runs->push_back(run);
}

}  // namespace

int64_t RowsOf(const v1::StateRange& range) { return range.shape_size() < 2 ? 1 : range.shape(0); }

int64_t ColumnsOf(const v1::StateRange& range) {
  int64_t columns = 1;
  for (int d = range.shape_size() < 2 ? 0 : 1; d < range.shape_size(); ++d) {
    columns *= range.shape(d);
  }
  return columns;
}

std::vector<StateRun> RunsOf(const v1::StateRange& range, const v1::Grid& grid,
                             const Coordinates& rank) {
  const int64_t element_bytes = kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
  const int64_t part = rank.tensor / SplitBlock(range);
  const int64_t row0 =
      range.row() + (range.split() == v1::StateRange::BY_ROWS ? part * range.rows() : 0);
  const int64_t column0 =
      range.column() + (range.split() == v1::StateRange::BY_COLUMNS ? part * range.columns() : 0);
  const int64_t tensor_rows = RowsOf(range), tensor_columns = ColumnsOf(range);
  const int64_t rows = std::min(range.rows(), tensor_rows - row0);
  const int64_t columns = std::min(range.columns(), tensor_columns - column0);
  const Window window = WindowOf(range, grid, rank);
  const int64_t base = element_bytes == 0 ? 0 : range.offset() / element_bytes;
  std::vector<StateRun> runs;
  if (columns <= 0) return runs;
  // Rows that are whole in the tensor and dense here are one run.
  if (columns == tensor_columns && range.row_stride() == columns) {
    if (rows > 0) {
      Append(window, row0 * tensor_columns, rows * columns, base, element_bytes, &runs);
    }
    return runs;
  }
  for (int64_t r = 0; r < rows; ++r) {
    Append(window, (row0 + r) * tensor_columns + column0, columns, base + r * range.row_stride(),
           element_bytes, &runs);
  }
  return runs;
}

bool OwnsState(const v1::StateRange& range, const v1::Grid& grid, const Coordinates& rank) {
  if (range.copy() || rank.replica != 0) return false;
  if (range.shard_elements() == 0 && ShardIndex(grid, rank) != 0) return false;
  if (range.split() == v1::StateRange::WHOLE) return rank.tensor == 0;
  return rank.tensor % SplitBlock(range) == 0;
}

}  // namespace terrace
