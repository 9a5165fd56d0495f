// SPDX-License-Identifier: Apache-2.0
#include "proto/program/state_layout.h"

#include <algorithm>

#include "kernels/tensor_view.h"

namespace terrace {
namespace {

uint32_t SplitBlock(const v1::StateRange& range) { return std::max(1u, range.split_block()); }

// Where this rank's buffer begins in the region that the range's offset counts from.
int64_t FirstOf(const v1::StateRange& range, const v1::Grid& grid, const Coordinates& rank) {
  if (range.shard_elements() == 0 || range.by_rank()) return 0;
  return ShardIndex(grid, rank) * range.shard_elements();
}

// Appends elements [begin, begin + elements) of the tensor, which lie at element `position` of the
// buffer, where those of [0, end) are.
void Append(int64_t end, int64_t begin, int64_t elements, int64_t position, int64_t element_bytes,
            std::vector<StateRun>* runs) {
  const int64_t first = std::max<int64_t>(position, 0);
  const int64_t last = std::min(position + elements, end);
  if (first >= last) return;
  const StateRun run = {.begin = begin + (first - position),
                        .elements = last - first,
                        .offset = first * element_bytes};
  if (!runs->empty()) {
    StateRun& before = runs->back();
    if (before.begin + before.elements == run.begin &&
        before.offset + before.elements * element_bytes == run.offset) {
      before.elements += run.elements;
      return;
    }
  }
  runs->push_back(run);
}

}  // namespace

std::vector<int64_t> ScalesShape(const std::vector<int64_t>& shape, int64_t block) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  const int64_t rows = shape.size() < 2 ? 1 : shape[0];
  if (rows > 0 && elements / rows % block == 0) return {rows, elements / rows / block};
  return {(elements + block - 1) / block};
}

std::string CodeScalesName(std::string_view tensor) { return std::string(tensor) + ".scales"; }

int64_t RowsOf(const v1::StateRange& range) { return range.shape_size() < 2 ? 1 : range.shape(0); }

int64_t RowsOfARank(const v1::StateRange& range, const v1::Grid& grid) {
  return range.by_rank() ? RowsOf(range) / ShardCount(grid) : RowsOf(range);
}

int64_t ColumnsOf(const v1::StateRange& range) {
  int64_t columns = 1;
  for (int d = range.shape_size() < 2 ? 0 : 1; d < range.shape_size(); ++d) {
    columns *= range.shape(d);
  }
  return columns;
}

StateRectangle RectangleOf(const v1::StateRange& range, const v1::Grid& grid,
                           const Coordinates& rank) {
  const int64_t element_bytes = kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
  const int64_t part = rank.tensor / SplitBlock(range);
  const int64_t row =
      range.row() + (range.split() == v1::StateRange::BY_ROWS ? part * range.rows() : 0);
  const int64_t column =
      range.column() + (range.split() == v1::StateRange::BY_COLUMNS ? part * range.columns() : 0);
  const int64_t base = element_bytes == 0 ? 0 : range.offset() / element_bytes;
  const int64_t tensor_columns = ColumnsOf(range), tensor_rows = RowsOfARank(range, grid);
  const int64_t first_row = range.by_rank() ? ShardIndex(grid, rank) * tensor_rows : 0;
  StateRectangle rectangle = {.rows = std::min(range.rows(), tensor_rows - row),
                              .columns = std::min(range.columns(), tensor_columns - column),
                              .position = base - FirstOf(range, grid, rank),
                              .row_stride = range.row_stride(),
                              .begin = (first_row + row) * tensor_columns + column,
                              .tensor_columns = tensor_columns};
  if (rectangle.rows <= 0 || rectangle.columns <= 0) return {};
  if (rectangle.columns == tensor_columns && range.row_stride() == rectangle.columns) {
    rectangle.columns *= rectangle.rows;
    rectangle.row_stride = rectangle.columns;
    rectangle.rows = 1;
  }
  return rectangle;
}

std::vector<StateRun> RunsOf(const v1::StateRange& range, const v1::Grid& grid,
                             const Coordinates& rank) {
  const int64_t element_bytes = kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
  const int64_t end = range.shard_elements() == 0 ? INT64_MAX : range.shard_elements();
  const StateRectangle rectangle = RectangleOf(range, grid, rank);
  std::vector<StateRun> runs;
  for (int64_t r = 0; r < rectangle.rows; ++r) {
    Append(end, rectangle.begin + r * rectangle.tensor_columns, rectangle.columns,
           rectangle.position + r * rectangle.row_stride, element_bytes, &runs);
  }
  return runs;
}

bool OwnsState(const v1::StateRange& range, const v1::Grid& grid, const Coordinates& rank) {
  if (range.copy() || rank.replica != 0) return false;
  const bool apart = range.shard_elements() > 0 || range.by_rank();
  if (!apart && ShardIndex(grid, rank) != 0) return false;
  if (range.split() == v1::StateRange::WHOLE) return rank.tensor == 0;
  return rank.tensor % SplitBlock(range) == 0;
}

}  // namespace terrace
