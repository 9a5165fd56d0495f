// Sets and maps of byte ranges, for what has been written and how often it was reduced. Internal to
// proto/check. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"

namespace terrace::check {

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;  // past the last byte
};

// `rows` ranges of `row_bytes`, `stride_bytes` apart, none overlapping.
struct Rows {
  int64_t offset = 0;
  int64_t rows = 1;
  int64_t row_bytes = 0;
  int64_t stride_bytes = 0;
};

// A set of bytes. Columns of one table (queries, keys and values side by side) are kept as such, so
// that they cost nothing a row; rows of several tables cost what the merged set and they cost
// together.
class ByteSet {
 public:
  void Add(const Rows& rows);
  // The first byte of `rows` that is not in the set; -1 when all are.
  int64_t FirstMissing(const Rows& rows) const;
  // Whether any byte of `range` is in the set.
  bool Meets(const ByteRange& range) const;

 private:
  using Ranges = std::vector<ByteRange>;  // sorted, neither overlapping nor touching

  // Rows of `stride_bytes`, from `begin` on, of which each has the same bytes in the set.
  struct Table {
    int64_t begin = 0;
    int64_t rows = 0;  // 0: there is none
    int64_t stride_bytes = 0;
    Ranges columns;
  };
  static int64_t FirstMissing(const Ranges& ranges, const Rows& rows);
  static bool Meets(const Ranges& ranges, const ByteRange& range);
  static void Add(Ranges* ranges, const ByteRange& range);
  static void Add(Ranges* ranges, const Rows& rows);
  // Whether `rows` are a column of the table that there is.
  bool InTable(const Rows& rows) const;
  void DissolveTable();

  Ranges ranges_;
  Table table_;  // the set is the union of both
};

// A value for every byte, `kNone` at first.
class ByteMap {
 public:
  static constexpr int kNone = -1;

  bool empty() const { return pieces_.empty(); }  // no byte was ever set
  void Set(const ByteRange& range, int value);
  void Clear() { pieces_.clear(); }
  // Calls `visit` for each maximal piece of `range` with one value, in order, pieces of kNone
  // included.
  void ForEach(const ByteRange& range, absl::FunctionRef<void(const ByteRange&, int)> visit) const;

 private:
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    int value = kNone;
  };
  // Sorted, disjoint, neighbours of one value merged: mostly one, of a buffer written as a whole.
  std::vector<Piece> pieces_;
};

}  // namespace terrace::check
