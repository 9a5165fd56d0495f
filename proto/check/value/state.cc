// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/instruction/structure.h"
#include "proto/check/value/announced.h"
#include "proto/program/grid.h"
#include "proto/program/state_layout.h"

namespace terrace::check {
namespace {

using google::protobuf::RepeatedField;

int64_t ElementBytes(const v1::StateRange& range) {
  return kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
}

uint32_t SplitBlock(const v1::StateRange& range) { return std::max(1u, range.split_block()); }

absl::Status CheckPersistent(const v1::Program& program, uint32_t buffer,
                             const std::string& where) {
  if (buffer >= static_cast<uint32_t>(program.buffers_size())) {
    return Refuse(where, ": buffer ", buffer, " of ", program.buffers_size(), " does not exist");
  }
  if (program.buffers(buffer).lifetime() == v1::PERSISTENT) return absl::OkStatus();
  return Refuse(where, ": ", BufferText(program, buffer), " must be persistent");
}

// The rectangle begins inside the tensor, and only what is split reaches over its edge.
absl::Status CheckRectangle(const v1::Program& program, const v1::StateRange& range,
                            const std::string& where) {
  const int64_t tensor_rows = RowsOfARank(range, program.grid());
  const int64_t tensor_columns = ColumnsOf(range);
  if (range.row() < 0 || range.row() >= tensor_rows || range.column() < 0 ||
      range.column() >= tensor_columns || range.rows() < 1 || range.rows() > kBytesMax ||
      range.columns() < 1 || range.columns() > kBytesMax) {
    return Refuse(where, ": ", range.rows(), " x ", range.columns(), " elements from row ",
                  range.row(), ", column ", range.column(), " on must begin inside its ",
                  tensor_rows, " x ", tensor_columns);
  }
  if (!v1::StateRange::Split_IsValid(range.split())) {
    return Refuse(where, ": split ", range.split(), " does not exist");
  }
  const bool rows_fit =
      range.split() == v1::StateRange::BY_ROWS || range.rows() <= tensor_rows - range.row();
  const bool columns_fit = range.split() == v1::StateRange::BY_COLUMNS ||
                           range.columns() <= tensor_columns - range.column();
  if (!rows_fit || !columns_fit) {
    return Refuse(where, ": ", range.rows(), " x ", range.columns(), " elements from row ",
                  range.row(), ", column ", range.column(), " on reach over the edge of its ",
                  tensor_rows, " x ", tensor_columns, ", which only a split may");
  }
  const uint32_t tensor = AxisSize(program.grid(), v1::TENSOR);
  if (tensor % SplitBlock(range) == 0) return absl::OkStatus();
  return Refuse(where, ": split_block ", SplitBlock(range), " must divide the ", tensor,
                " ranks of the axis TENSOR");
}

// The rectangle lies in the buffer, or in the region whose shards are the buffers of all ranks.
absl::Status CheckPlace(const v1::Program& program, const v1::StateRange& range,
                        const std::string& where) {
  RETURN_IF_ERROR(CheckPersistent(program, range.buffer(), where));
  const v1::Buffer& buffer = program.buffers(range.buffer());
  const int64_t element_bytes = ElementBytes(range);
  const int64_t shard = range.shard_elements();
  const int64_t shards = ShardCount(program.grid());
  if (shard < 0 || shard > buffer.bytes() / element_bytes ||
      shard > kBytesMax / element_bytes / shards) {
    return Refuse(where, ": shards of ", shard, " elements must fit into ",
                  BufferText(program, range.buffer()), " of ", buffer.bytes(), " bytes");
  }
  const int64_t regions = range.by_rank() ? 1 : shards;
  const int64_t bytes = shard == 0 ? buffer.bytes() : shard * element_bytes * regions;
  if (range.rows() > 1 &&
      (range.row_stride() < range.columns() || range.row_stride() > kBytesMax)) {
    return Refuse(where, ": row_stride ", range.row_stride(), " must be at least its ",
                  range.columns(), " columns");
  }
  const int64_t elements_max = bytes / element_bytes;
  const bool fits = range.offset() >= 0 && range.offset() % element_bytes == 0 &&
                    range.offset() <= bytes && range.columns() <= elements_max &&
                    (range.rows() == 1 ||
                     range.rows() - 1 <= (elements_max - range.columns()) / range.row_stride());
  if (fits) {
    const Rows rows = RowsIn(range);
    const int64_t span = (rows.rows - 1) * rows.stride_bytes + rows.row_bytes;
    if (span <= bytes - range.offset()) return absl::OkStatus();
  }
  return Refuse(where, ": ", range.rows(), " x ", range.columns(), " elements from byte ",
                range.offset(), " on must lie aligned inside ", BufferText(program, range.buffer()),
                shard == 0 ? " of " : ", all shards ", bytes, " bytes");
}

// What each rank has of its own are residuals, and ranks that hold the same shards have none: whose
// would be saved?
absl::Status CheckByRank(const v1::Program& program, const v1::StateRange& range,
                         const std::string& where) {
  if (range.by_rank() != (range.kind() == v1::RESIDUAL)) {
    return Refuse(where, ": is ", range.by_rank() ? "" : "not ", "of each rank, which ",
                  "residuals are and nothing else");
  }
  if (!range.by_rank()) return absl::OkStatus();
  const int64_t ranks = ShardCount(program.grid());
  if (AxisSize(program.grid(), v1::DATA_REPLICA) > 1)
    return Refuse(where, ": must not be there where ranks of DATA_REPLICA hold the same shards");
  if (range.shape_size() > 1 && range.shape(0) % ranks == 0) return absl::OkStatus();
  return Refuse(where, ": its first dimension must be that of a matrix times the ", ranks,
                " ranks of CONTEXT and DATA_SHARD");
}

absl::Status CheckRange(const v1::Program& program, const v1::StateRange& range) {
  const std::string where = RangeText(range);
  if (range.tensor().empty()) return Refuse(where, ": the tensor has no name");
  if (!v1::StateKind_IsValid(range.kind()) || range.kind() == v1::STATE_UNSPECIFIED) {
    return Refuse(where, ": kind ", range.kind(), " does not exist");
  }
  if (!v1::DType_IsValid(range.dtype()) || range.dtype() == v1::DTYPE_UNSPECIFIED) {
    return Refuse(where, ": type ", range.dtype(), " does not exist");
  }
  if (Elements(range.shape()) < 0) return Refuse(where, ": its shape is not valid");
  RETURN_IF_ERROR(CheckByRank(program, range, where));
  RETURN_IF_ERROR(CheckRectangle(program, range, where));
  return CheckPlace(program, range, where);
}

// What all ranks together hold of the tensor through one range: the parts of a split follow one
// another, so that they are one rectangle, and shards and copies change nothing.
struct Rectangle {
  int64_t row = 0, row_end = 0;
  int64_t column = 0, column_end = 0;
};

Rectangle RectangleOf(const v1::StateRange& range, const v1::Grid& grid) {
  const int64_t parts = AxisSize(grid, v1::TENSOR) / SplitBlock(range);
  const auto end = [&](int64_t begin, int64_t size, v1::StateRange::Split split, int64_t edge) {
    const int64_t times = range.split() == split ? parts : 1;
    return size > (edge - begin) / times ? edge : begin + size * times;
  };
  return {range.row(),
          end(range.row(), range.rows(), v1::StateRange::BY_ROWS, RowsOfARank(range, grid)),
          range.column(),
          end(range.column(), range.columns(), v1::StateRange::BY_COLUMNS, ColumnsOf(range))};
}

// Sweeps the tensor from row to row with the columns that are held there.
class Cover {
 public:
  Cover(int64_t rows, int64_t columns, std::string what)
      : rows_(rows), columns_(columns), what_(std::move(what)) {}

  absl::Status Check(const std::vector<Rectangle>& rectangles) {
    std::map<int64_t, std::pair<std::vector<int>, std::vector<int>>> events;  // begins, ends
    for (int i = 0; i < static_cast<int>(rectangles.size()); ++i) {
      events[rectangles[i].row].first.push_back(i);
      events[rectangles[i].row_end].second.push_back(i);
    }
    if (events.begin()->first > 0) return Missing(0, 0);
    for (const auto& [row, event] : events) {
      for (int i : event.second) Remove(rectangles[i]);
      for (int i : event.first) RETURN_IF_ERROR(Add(row, rectangles[i]));
      if (row < rows_ && held_ < columns_) return Missing(row, FirstGap());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Add(int64_t row, const Rectangle& rectangle) {
    const auto next = columns_held_.upper_bound(rectangle.column);
    const bool meets_next = next != columns_held_.end() && next->first < rectangle.column_end;
    const bool meets_last =
        next != columns_held_.begin() && std::prev(next)->second > rectangle.column;
    if (meets_next || meets_last) {
      const int64_t column = meets_last ? rectangle.column : next->first;
      return Refuse(what_, ": element ", row * columns_ + column, " is held twice");
    }
    columns_held_.emplace_hint(next, rectangle.column, rectangle.column_end);
    held_ += rectangle.column_end - rectangle.column;
    return absl::OkStatus();
  }

  void Remove(const Rectangle& rectangle) {
    columns_held_.erase(rectangle.column);
    held_ -= rectangle.column_end - rectangle.column;
  }

  int64_t FirstGap() const {
    int64_t column = 0;
    for (const auto& [begin, end] : columns_held_) {
      if (begin > column) break;
      column = end;
    }
    return column;
  }

  absl::Status Missing(int64_t row, int64_t column) const {
    return Refuse(what_, ": element ", row * columns_ + column, " of ", rows_ * columns_,
                  " is held by no range");
  }

  const int64_t rows_, columns_;
  const std::string what_;
  std::map<int64_t, int64_t> columns_held_;  // begin -> end, of the current row
  int64_t held_ = 0;
};

// `ranges` are those of one tensor and kind. A stage that holds a tensor holds all of it.
absl::Status CheckCover(const std::vector<const v1::StateRange*>& ranges, const v1::Grid& grid) {
  const v1::StateRange& first = *ranges[0];
  std::vector<Rectangle> rectangles;
  for (const v1::StateRange* range : ranges) {
    const bool same = range->dtype() == first.dtype() && range->copy() == first.copy() &&
                      std::equal(range->shape().begin(), range->shape().end(),
                                 first.shape().begin(), first.shape().end());
    if (!same) return Refuse(RangeText(first), ": its ranges differ in shape, type or copy");
    rectangles.push_back(RectangleOf(*range, grid));
  }
  return Cover(RowsOfARank(first, grid), ColumnsOf(first), RangeText(first)).Check(rectangles);
}

// What a range's rectangle is in memory.
struct Held {
  uint32_t buffer = 0;
  Rows rows;  // in the buffer or in the region
  const v1::StateRange* range = nullptr;
  int64_t end() const { return rows.offset + (rows.rows - 1) * rows.stride_bytes + rows.row_bytes; }
};

absl::Status RefuseOverlap(const v1::Program& program, const v1::StateRange& later,
                           const v1::StateRange& earlier) {
  return Refuse(RangeText(later), " and ", RangeText(earlier), " overlap in ",
                BufferText(program, later.buffer()));
}

// REQUIRES: both have rows of one stride, and `b` does not begin before `a`.
bool Overlap(const Rows& a, const Rows& b) {
  const int64_t stride = a.stride_bytes;
  const int64_t row = (b.offset - a.offset) / stride;  // of a, in which b begins
  const int64_t column = (b.offset - a.offset) % stride;
  return (column < a.row_bytes && row < a.rows) ||
         (column + b.row_bytes > stride && row + 1 < a.rows);
}

// Rows that lie between one another, as those of three matrices side by side in one do: looked at
// in pairs of matrices. False: there are too many or their strides differ.
absl::StatusOr<bool> CheckPairs(const v1::Program& program, absl::Span<const Held> held) {
  constexpr size_t kPairsOf = 64;
  const bool alike = std::all_of(held.begin(), held.end(), [&](const Held& one) {
    return one.rows.rows > 1 && one.rows.stride_bytes == held[0].rows.stride_bytes;
  });
  if (!alike || held.size() > kPairsOf) return false;
  for (size_t j = 1; j < held.size(); ++j) {
    for (size_t i = 0; i < j; ++i) {
      if (Overlap(held[i].rows, held[j].rows))
        return RefuseOverlap(program, *held[j].range, *held[i].range);
    }
  }
  return true;
}

// Row by row. `rows_left`: how many may still be walked.
absl::Status CheckRowByRow(const v1::Program& program, absl::Span<const Held> held,
                           int64_t* rows_left) {
  struct Piece {
    int64_t begin = 0, end = 0;
    const v1::StateRange* range = nullptr;
  };
  std::vector<Piece> pieces;
  for (const Held& one : held) {
    const Rows& rows = one.rows;
    if (rows.rows > *rows_left) {
      return Refuse("state: more than ", kStateRowsMax, " rows that do not follow one another");
    }
    *rows_left -= rows.rows;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int64_t begin = rows.offset + r * rows.stride_bytes;
      pieces.push_back({begin, begin + rows.row_bytes, one.range});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  for (size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i - 1].end > pieces[i].begin)
      return RefuseOverlap(program, *pieces[i].range, *pieces[i - 1].range);
  }
  return absl::OkStatus();
}

absl::Status CheckMemoryOnce(const v1::Program& program) {
  std::vector<Held> all;
  std::map<uint32_t, const v1::StateRange*> first_of;  // by buffer
  for (const v1::StateRange& range : program.state()) {
    const v1::StateRange& first = *first_of.emplace(range.buffer(), &range).first->second;
    if (range.shard_elements() != first.shard_elements() || range.dtype() != first.dtype()) {
      return Refuse(RangeText(range), " and ", RangeText(first), " share ",
                    BufferText(program, range.buffer()),
                    " and must have one type and one shard_elements");
    }
    all.push_back({range.buffer(), RowsIn(range), &range});
  }
  std::sort(all.begin(), all.end(), [](const Held& a, const Held& b) {
    return std::tuple(a.buffer, a.rows.offset, a.end()) <
           std::tuple(b.buffer, b.rows.offset, b.end());
  });
  // Only those whose bytes from the first to the last meet may overlap.
  int64_t rows_left = kStateRowsMax;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    int64_t reach = all[begin].end();
    for (end = begin + 1;
         end < all.size() && all[end].buffer == all[begin].buffer && all[end].rows.offset < reach;
         ++end) {
      reach = std::max(reach, all[end].end());
    }
    if (end == begin + 1) continue;
    const auto meeting = absl::MakeConstSpan(all).subspan(begin, end - begin);
    ASSIGN_OR_RETURN(const bool done, CheckPairs(program, meeting));
    if (!done) RETURN_IF_ERROR(CheckRowByRow(program, meeting, &rows_left));
  }
  return absl::OkStatus();
}

absl::Status CheckRopeTable(const v1::Program& program, const v1::RopeTable& table) {
  RETURN_IF_ERROR(CheckPersistent(program, table.buffer(), "rope table"));
  const v1::Buffer& buffer = program.buffers(table.buffer());
  const std::string where = absl::StrCat("rope table in ", BufferText(program, table.buffer()));
  if (buffer.dtype() != v1::F32 || buffer.shape_size() != 2 ||
      buffer.shape(1) != 2 * int64_t{table.inverse_frequency_size()}) {
    return Refuse(where, ": the buffer must be f32 [positions, ",
                  2 * table.inverse_frequency_size(), "], twice the number of frequencies");
  }
  const bool finite =
      std::isfinite(table.attention_factor()) &&
      std::all_of(table.inverse_frequency().begin(), table.inverse_frequency().end(),
                  [](double frequency) { return std::isfinite(frequency); });
  if (!finite) return Refuse(where, ": a frequency or the attention factor is not finite");
  return absl::OkStatus();
}

}  // namespace

std::string RangeText(const v1::StateRange& range) {
  return absl::StrCat("state ", v1::StateKind_Name(range.kind()), " of '", range.tensor(), "'");
}

int64_t Elements(const RepeatedField<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) {
    if (size < 1 || size > kBytesMax / elements) return -1;
    elements *= size;
  }
  return elements;
}

Rows RowsIn(const v1::StateRange& range) {
  const int64_t element_bytes = ElementBytes(range);
  if (range.rows() == 1 || range.row_stride() == range.columns()) {
    return {.offset = range.offset(), .row_bytes = range.rows() * range.columns() * element_bytes};
  }
  return {.offset = range.offset(),
          .rows = range.rows(),
          .row_bytes = range.columns() * element_bytes,
          .stride_bytes = range.row_stride() * element_bytes};
}

Rows FilledBytes(const v1::StateRange& range) {
  if (range.shard_elements() == 0) return RowsIn(range);
  return {.row_bytes = range.shard_elements() * ElementBytes(range)};
}

absl::Status CheckState(const v1::Program& program) {
  std::map<std::pair<std::string, int>, std::vector<const v1::StateRange*>> tensors;
  for (const v1::StateRange& range : program.state()) {
    RETURN_IF_ERROR(CheckRange(program, range));
    tensors[{range.tensor(), range.kind()}].push_back(&range);
  }
  std::map<std::string, int64_t> weights;  // elements by name
  for (const auto& [key, ranges] : tensors) {
    RETURN_IF_ERROR(CheckCover(ranges, program.grid()));
    if (key.second == v1::WEIGHT) weights[key.first] = Elements(ranges[0]->shape());
  }
  RETURN_IF_ERROR(CheckMemoryOnce(program));
  RETURN_IF_ERROR(CheckAnnounced(program, weights));
  for (const v1::RopeTable& table : program.rope_tables())
    RETURN_IF_ERROR(CheckRopeTable(program, table));
  for (const auto& [name, holder] : program.tied()) {
    if (program.stages() == 1 && !weights.contains(holder))
      return Refuse("tied tensor '", name, "': '", holder, "' is no weight");
    if (weights.contains(name)) return Refuse("tied tensor '", name, "': is a weight of its own");
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
