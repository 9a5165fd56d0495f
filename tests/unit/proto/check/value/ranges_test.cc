// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/ranges.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace terrace::check {
namespace {

constexpr int64_t kBytes = 96;

// The slow obvious way.
class PlainSet {
 public:
  void Add(const Rows& rows) {
    ForEach(rows, [this](int64_t byte) { in_[byte] = true; });
  }
  int64_t FirstMissing(const Rows& rows) const {
    int64_t missing = -1;
    ForEach(rows, [&](int64_t byte) {
      if (missing < 0 && !in_[byte]) missing = byte;
    });
    return missing;
  }
  bool Meets(const ByteRange& range) const {
    return std::any_of(in_.begin() + range.begin, in_.begin() + range.end,
                       [](bool b) { return b; });
  }

 private:
  template <typename Visit>
  static void ForEach(const Rows& rows, const Visit& visit) {
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t b = 0; b < rows.row_bytes; ++b) visit(rows.offset + r * rows.stride_bytes + b);
    }
  }
  std::vector<bool> in_ = std::vector<bool>(kBytes);
};

// Mostly columns of a few tables, some of which cross the end of a row.
Rows RandomRows(std::mt19937& random) {
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % limit); };
  const int64_t stride = random() % 4 == 0 ? 12 : 16;
  Rows rows = {.offset = stride * below(2) + below(stride),
               .rows = random() % 3 == 0 ? 1 : 4,
               .row_bytes = 1 + below(stride - 1),
               .stride_bytes = stride};
  if (random() % 8 == 0) rows.rows = 1 + below(4);
  return rows;
}

TEST(ByteSetTest, KnowsWhatAPlainSetKnows) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    ByteSet set;
    PlainSet plain;
    for (int i = 0; i < 12; ++i) {
      const Rows added = RandomRows(random);
      set.Add(added);
      plain.Add(added);
      for (int question = 0; question < 12; ++question) {
        const Rows asked = RandomRows(random);
        ASSERT_EQ(set.FirstMissing(asked), plain.FirstMissing(asked)) << "seed " << seed;
        const int64_t begin = random() % kBytes;
        const ByteRange range = {begin,
                                 begin + 1 + static_cast<int64_t>(random() % (kBytes - begin))};
        ASSERT_EQ(set.Meets(range), plain.Meets(range)) << "seed " << seed;
      }
    }
  }
}

TEST(ByteSetTest, ColumnsThatFillATableAreOneRange) {
  ByteSet set;
  for (int64_t column = 2; column >= 0; --column) {
    EXPECT_EQ(set.FirstMissing({.row_bytes = 30'000'000}), 0);
    set.Add({.offset = column * 10, .rows = 1'000'000, .row_bytes = 10, .stride_bytes = 30});
  }
  EXPECT_EQ(set.FirstMissing({.row_bytes = 30'000'000}), -1);
}

TEST(ByteMapTest, HoldsWhatAPlainArrayHolds) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % limit); };
    const auto any_range = [&] {
      const int64_t begin = below(kBytes);
      return ByteRange{begin, begin + 1 + below(kBytes - begin)};
    };
    ByteMap map;
    std::vector<int> plain(kBytes, ByteMap::kNone);
    for (int i = 0; i < 40; ++i) {
      const ByteRange set = any_range();
      const int value = static_cast<int>(below(4)) - 1;  // kNone, too
      map.Set(set, value);
      std::fill(plain.begin() + set.begin, plain.begin() + set.end, value);
      const ByteRange asked = any_range();
      int64_t at = asked.begin;
      map.ForEach(asked, [&](const ByteRange& bytes, int found) {
        ASSERT_EQ(bytes.begin, at) << "seed " << seed;
        ASSERT_LT(bytes.begin, bytes.end) << "seed " << seed;
        for (; at < bytes.end; ++at) ASSERT_EQ(found, plain[at]) << "seed " << seed << " at " << at;
      });
      ASSERT_EQ(at, asked.end) << "seed " << seed;
    }
  }
}

// What was set in pieces is one, so that asking costs nothing a piece.
TEST(ByteMapTest, NeighboursOfOneValueAreOnePiece) {
  ByteMap map;
  for (int64_t begin : {40, 0, 20, 30, 10}) map.Set({begin, begin + 10}, 7);
  int pieces = 0;
  map.ForEach({0, 50}, [&](const ByteRange&, int value) {
    ++pieces;
    EXPECT_EQ(value, 7);
  });
  EXPECT_EQ(pieces, 1);
}

}  // namespace
}  // namespace terrace::check
