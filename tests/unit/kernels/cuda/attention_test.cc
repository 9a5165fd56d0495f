// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace terrace::kernels::cuda {
namespace {

AttentionShape Pieces(int64_t length, int64_t offset, int64_t window) {
  AttentionShape shape = {};
  shape.batch = shape.heads = shape.kv_heads = 1;
  shape.rows = shape.length = length;
  shape.offset = offset;
  shape.window = window;
  return shape;
}

TEST(AttentionShapeTest, AQuerySeesKeysThatAreNotLaterAndWithinTheWindow) {
  const AttentionShape whole = Pieces(8, 0, 3);
  EXPECT_TRUE(whole.Sees(4, 4));
  EXPECT_TRUE(whole.Sees(4, 2));
  EXPECT_FALSE(whole.Sees(4, 1)) << "outside the window";
  EXPECT_FALSE(whole.Sees(4, 5)) << "later";
  EXPECT_FALSE(whole.Sees(8, 7)) << "no such query";
}

TEST(AttentionShapeTest, RangesHoldAllThatIsSeenAndNoTileThatIsNot) {
  constexpr int64_t kLength = 11, kTile = 4;
  for (int64_t offset = -13; offset <= 25; ++offset) {
    for (int64_t window : {0, 1, 2, 5, 11, 30}) {
      const AttentionShape shape = Pieces(kLength, offset, window);
      for (int64_t first = 0; first < kLength; first += kTile) {
        SCOPED_TRACE(testing::Message() << offset << ' ' << window << ' ' << first);
        const RowRange keys = shape.KeysOf(first, first + kTile);
        const RowRange queries = shape.QueriesOf(first, first + kTile);
        EXPECT_GE(keys.begin, 0);
        EXPECT_LE(keys.end, kLength);
        EXPECT_GE(queries.begin, 0);
        EXPECT_LE(queries.end, kLength);
        int64_t seen_keys = 0, seen_queries = 0;
        for (int64_t other = 0; other < kLength; ++other) {
          bool key = false, query = false;
          for (int64_t own = first; own < first + kTile; ++own) {
            key = key || shape.Sees(own, other);
            query = query || shape.Sees(other, own);
          }
          EXPECT_TRUE(!key || (keys.begin <= other && other < keys.end)) << other;
          EXPECT_TRUE(!query || (queries.begin <= other && other < queries.end)) << other;
          seen_keys += key;
          seen_queries += query;
        }
        if (first + kTile <= kLength) {
          EXPECT_EQ(std::max<int64_t>(0, keys.end - keys.begin), seen_keys);
          EXPECT_EQ(std::max<int64_t>(0, queries.end - queries.begin), seen_queries);
        }
      }
    }
  }
}

TEST(AttentionShapeTest, PlacesInATileAreThoseOfThePairsThatSeeEachOther) {
  constexpr int64_t kLength = 9;
  constexpr int kCount = 4;
  constexpr int32_t kStarts[kLength] = {0, 0, 3, 3, 3, 5, 9, 9, 12};
  for (int64_t offset = -10; offset <= 20; ++offset) {
    for (int64_t window : {0, 1, 3, 9, 30}) {
      const AttentionShape whole = Pieces(kLength, offset, window);
      AttentionShape documents = whole;
      documents.starts = kStarts;
      documents.key_position = 2;
      for (const AttentionShape& shape : {whole, documents}) {
        for (int64_t own = 0; own <= kLength + 1; ++own) {
          for (int64_t tile = 0; tile <= kLength; ++tile) {
            SCOPED_TRACE(testing::Message()
                         << offset << ' ' << window << ' ' << own << ' ' << tile);
            const TileRange keys = shape.KeysInTile(own, tile, kCount);
            const TileRange queries = shape.QueriesInTile(own, tile, kCount);
            for (int place = 0; place < kCount; ++place) {
              EXPECT_EQ(keys.Holds(place), shape.Sees(own, tile + place));
              EXPECT_EQ(queries.Holds(place), shape.Sees(tile + place, own));
            }
          }
        }
      }
    }
  }
}

TEST(AttentionShapeTest, ATileIsSeenByAllWhereNoPairOfItIsHidden) {
  constexpr int64_t kLength = 9, kQueries = 3, kKeys = 4;
  int64_t whole_tiles = 0;
  for (int64_t offset = -10; offset <= 20; ++offset) {
    for (int64_t window : {0, 1, 6, 7, 9, 30}) {
      const AttentionShape shape = Pieces(kLength, offset, window);
      for (int64_t query = 0; query <= kLength; ++query) {
        for (int64_t key = 0; key <= kLength; ++key) {
          bool all = true;
          for (int64_t i = query; i < query + kQueries; ++i) {
            for (int64_t j = key; j < key + kKeys; ++j) all = all && shape.Sees(i, j);
          }
          EXPECT_EQ(shape.SeesAll(query, query + kQueries, key, key + kKeys), all)
              << offset << ' ' << window << ' ' << query << ' ' << key;
          whole_tiles += all;
        }
      }
    }
  }
  EXPECT_GT(whole_tiles, 0);
}

// Whether `at` gives every tile of every head once, none before one that takes longer.
using TaskOf = AttentionTask (*)(const AttentionShape&, int64_t, int64_t, int64_t);
void ExpectTheLongestFirst(TaskOf at, RowRange (AttentionShape::*seen_by)(int64_t, int64_t) const) {
  for (int64_t length : {1, 15, 16, 17, 64, 65}) {
    AttentionShape shape = Pieces(length, 0, 0);
    shape.batch = 3;
    shape.heads = 4;
    std::set<std::tuple<int64_t, int64_t, int64_t>> seen;
    const int64_t tasks = AttentionTasks(shape, shape.heads, 16);
    int64_t before = length;
    for (int64_t i = 0; i < tasks; ++i) {
      const AttentionTask task = at(shape, shape.heads, 16, i);
      EXPECT_TRUE(task.sequence >= 0 && task.sequence < 3 && task.head >= 0 && task.head < 4);
      EXPECT_TRUE(task.first >= 0 && task.first < length && task.first % 16 == 0);
      const RowRange rows = (shape.*seen_by)(task.first, task.first + 16);
      EXPECT_LE(rows.end - rows.begin, before);
      before = rows.end - rows.begin;
      seen.insert({task.sequence, task.head, task.first});
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), tasks) << length;
    EXPECT_EQ(tasks, 12 * ((length + 15) / 16)) << length;
  }
}

TEST(AttentionShapeTest, TasksAreEveryTileOfEveryHeadOnceTheLongestFirst) {
  ExpectTheLongestFirst(&TaskAt, &AttentionShape::KeysOf);
  ExpectTheLongestFirst(&KeyTaskAt, &AttentionShape::QueriesOf);
}

}  // namespace
}  // namespace terrace::kernels::cuda
