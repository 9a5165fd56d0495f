// SPDX-License-Identifier: Apache-2.0
#include "proto/check/ranges.h"

#include <algorithm>
#include <utility>

namespace terrace::check {

void ByteSet::Add(const Rows& rows) {
  if (FirstMissing(rows) < 0) return;
  std::vector<ByteRange> merged;
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
    while (old < ranges_.size() && ranges_[old].begin <= begin) append(ranges_[old++]);
    append({begin, begin + rows.row_bytes});
  }
  while (old < ranges_.size()) append(ranges_[old++]);
  ranges_ = std::move(merged);
}

int64_t ByteSet::FirstMissing(const Rows& rows) const {
  auto range = std::partition_point(ranges_.begin(), ranges_.end(),
                                    [&](const ByteRange& r) { return r.end <= rows.offset; });
  const int64_t end = rows.offset + (rows.rows - 1) * rows.stride_bytes + rows.row_bytes;
  if (range != ranges_.end() && range->begin <= rows.offset && end <= range->end) return -1;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t begin = rows.offset + r * rows.stride_bytes;
    while (range != ranges_.end() && range->end <= begin) ++range;
    if (range == ranges_.end() || range->begin > begin) return begin;
    if (range->end < begin + rows.row_bytes) return range->end;
  }
  return -1;
}

bool ByteSet::Meets(const ByteRange& range) const {
  const auto first = std::partition_point(ranges_.begin(), ranges_.end(),
                                          [&](const ByteRange& r) { return r.end <= range.begin; });
  return first != ranges_.end() && first->begin < range.end;
}

void ByteMap::SplitAt(int64_t byte) {
  auto after = pieces_.upper_bound(byte);
  if (after == pieces_.begin()) return;
  auto piece = std::prev(after);
  if (piece->first == byte || piece->second.end <= byte) return;
  pieces_.emplace_hint(after, byte, piece->second);
  piece->second.end = byte;
}

void ByteMap::Set(const ByteRange& range, int value) {
  SplitAt(range.begin);
  SplitAt(range.end);
  pieces_.erase(pieces_.lower_bound(range.begin), pieces_.lower_bound(range.end));
  Piece piece = {range.end, value};
  auto next = pieces_.lower_bound(range.begin);
  if (next != pieces_.end() && next->first == range.end && next->second.value == value) {
    piece.end = next->second.end;
    next = pieces_.erase(next);
  }
  if (next != pieces_.begin()) {
    const auto last = std::prev(next);
    if (last->second.end == range.begin && last->second.value == value) {
      last->second.end = piece.end;
      return;
    }
  }
  pieces_.emplace_hint(next, range.begin, piece);
}

void ByteMap::ForEach(const ByteRange& range,
                      const std::function<void(const ByteRange&, int)>& visit) const {
  auto piece = pieces_.upper_bound(range.begin);
  if (piece != pieces_.begin()) --piece;
  int64_t at = range.begin;
  for (; piece != pieces_.end() && piece->first < range.end; ++piece) {
    if (piece->second.end <= at) continue;
    if (piece->first > at) visit({at, piece->first}, kNone);
    const int64_t begin = std::max(at, piece->first);
    const int64_t end = std::min(range.end, piece->second.end);
    visit({begin, end}, piece->second.value);
    at = end;
  }
  if (at < range.end) visit({at, range.end}, kNone);
}

}  // namespace terrace::check
