// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/ranges.h"

#include <algorithm>
#include <utility>

namespace terrace::check {

namespace {

// Its column, in a table that starts on a multiple of the stride.
ByteRange ColumnOfStride(const Rows& rows) {
  const int64_t begin = rows.offset % rows.stride_bytes;
  return {begin, begin + rows.row_bytes};
}

bool IsColumn(const Rows& rows) {
  return rows.rows > 1 && rows.stride_bytes > 0 && ColumnOfStride(rows).end <= rows.stride_bytes;
}

}  // namespace

bool ByteSet::InTable(const Rows& rows) const {
  return table_.rows > 0 && rows.rows == table_.rows && rows.stride_bytes == table_.stride_bytes &&
         IsColumn(rows) && rows.offset - ColumnOfStride(rows).begin == table_.begin;
}

void ByteSet::Add(const Rows& rows) {
  if (FirstMissing(ranges_, rows) < 0) return;
  if (rows.rows == 1) return Add(&ranges_, ByteRange{rows.offset, rows.offset + rows.row_bytes});
  if (table_.rows == 0 && IsColumn(rows)) {
    table_ = {.begin = rows.offset - ColumnOfStride(rows).begin,
              .rows = rows.rows,
              .stride_bytes = rows.stride_bytes};
  }
  if (!InTable(rows)) {
    DissolveTable();
    return Add(&ranges_, rows);
  }
  Add(&table_.columns, ColumnOfStride(rows));
  const ByteRange& first = table_.columns[0];
  if (first.end - first.begin == table_.stride_bytes) DissolveTable();
}

void ByteSet::DissolveTable() {
  for (const ByteRange& column : table_.columns) {
    const int64_t bytes = column.end - column.begin;
    const int64_t begin = table_.begin + column.begin;
    if (bytes == table_.stride_bytes) {
      Add(&ranges_, ByteRange{begin, begin + table_.rows * bytes});
    } else {
      Add(&ranges_, Rows{begin, table_.rows, bytes, table_.stride_bytes});
    }
  }
  table_ = {};
}

int64_t ByteSet::FirstMissing(const Rows& rows) const {
  const int64_t missing = FirstMissing(ranges_, rows);
  if (missing < 0 || table_.rows == 0) return missing;
  if (InTable(rows)) {
    const ByteRange column = ColumnOfStride(rows);
    if (FirstMissing(table_.columns,
                     {.offset = column.begin, .row_bytes = column.end - column.begin}) < 0) {
      return -1;
    }
  }
  ByteSet plain = *this;
  plain.DissolveTable();
  return FirstMissing(plain.ranges_, rows);
}

bool ByteSet::Meets(const ByteRange& range) const {
  if (Meets(ranges_, range)) return true;
  const int64_t stride = table_.stride_bytes;
  const int64_t begin = std::max(range.begin - table_.begin, int64_t{0});
  const int64_t end = std::min(range.end - table_.begin, table_.rows * stride);
  if (begin >= end) return false;
  if (end - begin >= stride) return true;
  // Less than a row: it lies in one, or in the end of one and the begin of the next.
  const int64_t row = begin / stride * stride;
  return Meets(table_.columns, {begin - row, std::min(end - row, stride)}) ||
         (end - row > stride && Meets(table_.columns, {0, end - row - stride}));
}

void ByteSet::Add(Ranges* ranges, const ByteRange& range) {
  const auto first = std::partition_point(ranges->begin(), ranges->end(),
                                          [&](const ByteRange& r) { return r.end < range.begin; });
  const auto last = std::partition_point(first, ranges->end(),
                                         [&](const ByteRange& r) { return r.begin <= range.end; });
  if (first == last) {
    ranges->insert(first, range);
    return;
  }
  first->begin = std::min(first->begin, range.begin);
  first->end = std::max(std::prev(last)->end, range.end);
  ranges->erase(std::next(first), last);
}

void ByteSet::Add(Ranges* ranges, const Rows& rows) {
  Ranges merged;
  merged.reserve(ranges->size() + static_cast<size_t>(rows.rows));
  const auto append = [&merged](const ByteRange& range) {
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  };
  size_t old = 0;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t begin = rows.offset + r * rows.stride_bytes;
    while (old < ranges->size() && (*ranges)[old].begin <= begin) append((*ranges)[old++]);
    append({begin, begin + rows.row_bytes});
  }
  while (old < ranges->size()) append((*ranges)[old++]);
  *ranges = std::move(merged);
}

int64_t ByteSet::FirstMissing(const Ranges& ranges, const Rows& rows) {
  auto range = std::partition_point(ranges.begin(), ranges.end(),
                                    [&](const ByteRange& r) { return r.end <= rows.offset; });
  const int64_t end = rows.offset + (rows.rows - 1) * rows.stride_bytes + rows.row_bytes;
  if (range != ranges.end() && range->begin <= rows.offset && end <= range->end) return -1;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t begin = rows.offset + r * rows.stride_bytes;
    while (range != ranges.end() && range->end <= begin) ++range;
    if (range == ranges.end() || range->begin > begin) return begin;
    if (range->end < begin + rows.row_bytes) return range->end;
  }
  return -1;
}

bool ByteSet::Meets(const Ranges& ranges, const ByteRange& range) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const ByteRange& r) { return r.end <= range.begin; });
  return first != ranges.end() && first->begin < range.end;
}

void ByteMap::Set(const ByteRange& range, int value) {
  if (range.begin >= range.end) return;
  // The pieces that it meets or touches; of the outer two something may be left.
  const auto first = std::partition_point(pieces_.begin(), pieces_.end(),
                                          [&](const Piece& p) { return p.end < range.begin; });
  const auto last = std::partition_point(first, pieces_.end(),
                                         [&](const Piece& p) { return p.begin <= range.end; });
  Piece made = {range.begin, range.end, value};
  Piece replaced[3];
  int count = 0;
  const Piece* right = nullptr;
  if (first != last) {
    if (first->begin < range.begin && first->value == value) made.begin = first->begin;
    if (made.begin == range.begin && first->begin < range.begin) {
      replaced[count++] = {first->begin, range.begin, first->value};
    }
    right = &*std::prev(last);
    if (right->end > range.end && right->value == value) made.end = right->end;
    if (made.end > range.end || right->end <= range.end) right = nullptr;
  }
  replaced[count++] = made;
  if (right != nullptr) replaced[count++] = {range.end, right->end, right->value};
  const auto in_place = std::min<int64_t>(count, last - first);
  std::copy_n(replaced, in_place, first);
  if (in_place < count) {
    pieces_.insert(last, replaced + in_place, replaced + count);
  } else {
    pieces_.erase(first + in_place, last);
  }
}

void ByteMap::ForEach(const ByteRange& range,
                      absl::FunctionRef<void(const ByteRange&, int)> visit) const {
  auto piece = std::partition_point(pieces_.begin(), pieces_.end(),
                                    [&](const Piece& p) { return p.end <= range.begin; });
  int64_t at = range.begin;
  for (; piece != pieces_.end() && piece->begin < range.end; ++piece) {
    if (piece->begin > at) visit({at, piece->begin}, kNone);
    const int64_t begin = std::max(at, piece->begin);
    const int64_t end = std::min(range.end, piece->end);
    visit({begin, end}, piece->value);
    at = end;
  }
  if (at < range.end) visit({at, range.end}, kNone);
}

}  // namespace terrace::check
