// Rows of a page each and what lies in them: the state of pack_rows.h while it places rests.
//
// In: by slot of time, how many pages are left for rows. A rest may lie where no other does during
// its life, if at no moment more rows are occupied then than are left. Lives are slots, offsets
// bytes of the strip, row after row. Deterministic. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace terrace {

struct RowItem {
  int64_t bytes = 0;  // 0: nothing is left of it
  int begin = 0;      // lives during the slots [begin, end)
  int end = 0;
  bool at_edge = false;  // touches the beginning or the end of a row, or crosses it
};

// Where a rest lies: from `offset` to the end of that row at most, the others of its bytes from the
// beginning of `next_row` on.
struct RowPlace {
  int64_t offset = 0;
  int64_t next_row = 0;

  bool operator==(const RowPlace&) const = default;
};

enum class RowChoice {
  kLowest,
  kFewest,  // occupies the fewest new rows, by the weights of their slots; then the lowest
};

class PackStrip {
 public:
  // `rows_left` and `weights` by slot; a weight is at least 1.
  PackStrip(int64_t page_bytes, int rows, std::vector<int> rows_left, std::vector<int64_t> weights);

  // Where the choice says, in one piece of the strip, or where that does not do at the end of any
  // row and the beginning of any other, or nowhere. Takes what it looks at from `steps`, here and
  // below.
  std::optional<RowPlace> Place(int id, const RowItem& item, RowChoice choice, int64_t* steps);
  void PlaceAt(int id, const RowItem& item, RowPlace place);
  // In one piece.
  RowPlace PlaceOf(int64_t offset) const { return {offset, offset / page_ + 1}; }
  // Where the least lies in its way: the sum of bytes times the `price` of each, by id. What lies
  // there is removed and added to `removed`. Nothing with a negative id is.
  std::optional<RowPlace> Force(int id, const RowItem& item, absl::Span<const int64_t> prices,
                                std::vector<int>* removed, int64_t* steps);

 private:
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    int born = 0;
    int dead = 0;
    int id = 0;
  };
  class Best;
  class Cheapest;
  // What is free at both ends of a row.
  struct Room {
    int64_t row = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };

  void Add(const Segment& segment);
  // Adds or removes it.
  void Count(const Segment& segment, int by);

  // Those that meet it, by offset.
  std::vector<Segment> Near(const RowItem& item) const;
  // By row, of all in which any of them lies.
  std::vector<Room> RoomsOf(const std::vector<Segment>& near) const;
  // The end of one row and the beginning of another that leave the least.
  std::optional<RowPlace> FindSplit(const RowItem& item, int64_t* steps) const;
  bool MayLieAt(const RowItem& item, int64_t offset) const;
  // Of the rows that it makes occupied. None where these are too many.
  std::optional<int64_t> CostOf(const RowItem& item, RowPlace place, int64_t* steps) const;

  const int64_t page_;
  const int rows_;
  std::vector<int> left_;  // by slot
  const std::vector<int64_t> weights_;
  std::vector<uint16_t> items_;    // by row and slot
  std::vector<Segment> segments_;  // by offset
};

}  // namespace terrace
