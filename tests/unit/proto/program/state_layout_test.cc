// SPDX-License-Identifier: Apache-2.0
#include "proto/program/state_layout.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::StateRange Matrix(int64_t tensor_rows, int64_t tensor_columns) {
  v1::StateRange range;
  range.set_tensor("w");
  range.set_kind(v1::WEIGHT);
  range.set_dtype(v1::F32);
  range.add_shape(tensor_rows);
  range.add_shape(tensor_columns);
  range.set_rows(tensor_rows);
  range.set_columns(tensor_columns);
  range.set_row_stride(tensor_columns);
  return range;
}

v1::Grid TensorGrid(uint32_t size) {
  v1::Grid grid;
  grid.set_tensor(size);
  return grid;
}

// ---- examples ----------------------------------------------------------------------------------

TEST(RunsOfTest, AWholeMatrixIsOneRun) {
  v1::StateRange range = Matrix(3, 4);
  range.set_offset(256);
  EXPECT_THAT(RunsOf(range, {}, {}), ElementsAre(StateRun{0, 12, 256}));
}

TEST(RunsOfTest, AVectorIsOneRowAndMoreDimensionsAreColumns) {
  v1::StateRange vector;
  vector.add_shape(7);
  EXPECT_EQ(RowsOf(vector), 1);
  EXPECT_EQ(ColumnsOf(vector), 7);
  v1::StateRange cube;
  for (const int64_t size : {2, 3, 5}) cube.add_shape(size);
  EXPECT_EQ(RowsOf(cube), 2);
  EXPECT_EQ(ColumnsOf(cube), 15);
}

TEST(RunsOfTest, RowsOfATensorRankAreOneRunColumnsOneARow) {
  v1::StateRange rows = Matrix(4, 6);
  rows.set_rows(2);
  rows.set_split(v1::StateRange::BY_ROWS);
  EXPECT_THAT(RunsOf(rows, TensorGrid(2), {.tensor = 1}), ElementsAre(StateRun{12, 12, 0}));
  v1::StateRange columns = Matrix(2, 6);
  columns.set_columns(3);
  columns.set_row_stride(3);
  columns.set_split(v1::StateRange::BY_COLUMNS);
  EXPECT_THAT(RunsOf(columns, TensorGrid(2), {.tensor = 1}),
              ElementsAre(StateRun{3, 3, 0}, StateRun{9, 3, 12}));
}

TEST(RunsOfTest, RanksOfOneBlockHoldTheSame) {
  v1::StateRange range = Matrix(4, 6);
  range.set_rows(2);
  range.set_split(v1::StateRange::BY_ROWS);
  range.set_split_block(2);
  const v1::Grid grid = TensorGrid(4);
  EXPECT_EQ(RunsOf(range, grid, {.tensor = 2}), RunsOf(range, grid, {.tensor = 3}));
  EXPECT_THAT(RunsOf(range, grid, {.tensor = 3}), ElementsAre(StateRun{12, 12, 0}));
  EXPECT_TRUE(OwnsState(range, grid, {.tensor = 2}));
  EXPECT_FALSE(OwnsState(range, grid, {.tensor = 3}));
}

TEST(RunsOfTest, WhatLiesBeyondTheTensorIsPadding) {
  v1::StateRange range = Matrix(5, 2);
  range.set_rows(2);
  range.set_split(v1::StateRange::BY_ROWS);
  const v1::Grid grid = TensorGrid(4);
  EXPECT_THAT(RunsOf(range, grid, {.tensor = 2}), ElementsAre(StateRun{8, 2, 0}));
  EXPECT_THAT(RunsOf(range, grid, {.tensor = 3}), IsEmpty());
}

TEST(RunsOfTest, AShardHoldsItsPartOfTheRegion) {
  v1::StateRange range = Matrix(2, 5);
  range.set_offset(4);  // element 1 of the region
  range.set_shard_elements(4);
  v1::Grid grid;
  grid.set_data_shard(3);
  EXPECT_THAT(RunsOf(range, grid, {.shard = 0}), ElementsAre(StateRun{0, 3, 4}));
  EXPECT_THAT(RunsOf(range, grid, {.shard = 1}), ElementsAre(StateRun{3, 4, 0}));
  EXPECT_THAT(RunsOf(range, grid, {.shard = 2}), ElementsAre(StateRun{7, 3, 0}));
}

TEST(RunsOfTest, RowsThatLieFurtherApartAreRunsOfTheirOwn) {
  v1::StateRange range = Matrix(2, 3);
  range.set_row_stride(4);
  EXPECT_THAT(RunsOf(range, {}, {}), ElementsAre(StateRun{0, 3, 0}, StateRun{3, 3, 16}));
}

TEST(OwnsStateTest, CopiesAndReplicasAreNobodysToWrite) {
  v1::StateRange range = Matrix(2, 2);
  v1::Grid grid;
  grid.set_context(2);
  grid.set_data_replica(2);
  EXPECT_TRUE(OwnsState(range, grid, {}));
  EXPECT_FALSE(OwnsState(range, grid, {.replica = 1}));
  EXPECT_FALSE(OwnsState(range, grid, {.context = 1}));
  range.set_shard_elements(2);
  EXPECT_TRUE(OwnsState(range, grid, {.context = 1}));
  EXPECT_FALSE(OwnsState(range, grid, {.context = 1, .replica = 1}));
  range.set_copy(true);
  EXPECT_FALSE(OwnsState(range, grid, {}));
}

// ---- any layout --------------------------------------------------------------------------------

// A tensor cut along one dimension into parts that each are split over the tensor ranks, as q, k
// and v in one matrix are, and perhaps sharded.
struct RandomState {
  v1::Grid grid;
  std::vector<v1::StateRange> ranges;
  int64_t region_elements = 0;
  int64_t tensor_elements = 0;

  explicit RandomState(std::mt19937* random) {
    const auto from = [&](uint32_t low, uint32_t high) {
      return low + (*random)() % (high - low + 1);
    };
    grid.set_tensor(1 << from(0, 2));
    grid.set_context(from(1, 2));
    grid.set_data_shard(from(1, 3));
    grid.set_data_replica(from(1, 2));
    const bool is_vector = from(0, 3) == 0, by_rows = !is_vector && from(0, 1) == 0;
    const int64_t other = is_vector ? 1 : from(1, 9);
    // The sizes of the parts along the split; the last one may end in padding.
    int64_t along = 0;
    for (int parts = from(1, 3); parts > 0; --parts) {
      const uint32_t block = 1u << from(0, std::bit_width(grid.tensor()) - 1);
      const int64_t rectangles = grid.tensor() / block, size = from(1, 4);
      const bool whole = from(0, 4) == 0;
      AddRange(along, size, other, whole, by_rows, block, from(0, 2));
      along += size * (whole ? 1 : rectangles);
    }
    const bool pads = ranges.back().split() != v1::StateRange::WHOLE;
    const int64_t cut = pads ? from(0, std::min<uint32_t>(along - 1, 5)) : 0;
    const int64_t last = by_rows ? ranges.back().row() : ranges.back().column();
    SetShape(std::max(last + 1, along - cut), other, is_vector, by_rows);
    if (from(0, 1) == 0) Shard();
  }

  void AddRange(int64_t begin, int64_t size, int64_t other, bool whole, bool by_rows,
                uint32_t block, int64_t gap) {
    v1::StateRange range;
    range.set_tensor("w");
    range.set_dtype(v1::F32);
    range.set_row(by_rows ? begin : 0);
    range.set_column(by_rows ? 0 : begin);
    range.set_rows(by_rows ? size : other);
    range.set_columns(by_rows ? other : size);
    range.set_row_stride(range.columns() + gap);
    range.set_offset(region_elements * 4);
    if (!whole) {
      range.set_split(by_rows ? v1::StateRange::BY_ROWS : v1::StateRange::BY_COLUMNS);
      range.set_split_block(block);
    }
    region_elements += range.rows() * range.row_stride();
    ranges.push_back(range);
  }

  void SetShape(int64_t along, int64_t other, bool is_vector, bool by_rows) {
    tensor_elements = along * other;
    for (v1::StateRange& range : ranges) {
      if (!is_vector) range.add_shape(by_rows ? along : other);
      range.add_shape(by_rows ? other : along);
    }
  }

  void Shard() {
    const int64_t count = ShardCount(grid);
    for (v1::StateRange& range : ranges) {
      range.set_shard_elements((region_elements + count - 1) / count);
    }
  }

  int64_t BufferElements() const {
    const int64_t shard = ranges[0].shard_elements();
    return shard > 0 ? shard : region_elements;
  }
};

class AnyLayoutTest : public ::testing::Test {
 protected:
  static constexpr int kRounds = 2000;
};

TEST_F(AnyLayoutTest, EveryElementIsOwnedExactlyOnce) {
  std::mt19937 random(11);
  for (int round = 0; round < kRounds; ++round) {
    const RandomState state(&random);
    SCOPED_TRACE(state.grid.ShortDebugString() + "; " + state.ranges[0].ShortDebugString());
    std::vector<int> owners(state.tensor_elements);
    for (uint32_t rank = 0; rank < RanksOf(state.grid); ++rank) {
      const Coordinates place = CoordinatesOf(state.grid, rank);
      for (const v1::StateRange& range : state.ranges) {
        if (!OwnsState(range, state.grid, place)) continue;
        for (const StateRun& run : RunsOf(range, state.grid, place)) {
          for (int64_t i = 0; i < run.elements; ++i) ++owners.at(run.begin + i);
        }
      }
    }
    ASSERT_EQ(std::count(owners.begin(), owners.end(), 1), state.tensor_elements);
  }
}

// The ranks that differ only in their replica, or in the axes of the shards when there are none,
// or stand in one block of a split, hold the same; together the others hold all.
TEST_F(AnyLayoutTest, EveryReplicaHoldsEveryElement) {
  std::mt19937 random(12);
  for (int round = 0; round < kRounds; ++round) {
    const RandomState state(&random);
    SCOPED_TRACE(state.grid.ShortDebugString() + "; " + state.ranges[0].ShortDebugString());
    const bool sharded = state.ranges[0].shard_elements() > 0;
    std::map<std::pair<uint32_t, uint32_t>, std::vector<bool>> held;  // by replica and copy
    for (uint32_t rank = 0; rank < RanksOf(state.grid); ++rank) {
      const Coordinates place = CoordinatesOf(state.grid, rank);
      std::vector<bool>& elements =
          held[{place.replica, sharded ? 0 : ShardIndex(state.grid, place)}];
      elements.resize(state.tensor_elements);
      for (const v1::StateRange& range : state.ranges) {
        for (const StateRun& run : RunsOf(range, state.grid, place)) {
          for (int64_t i = 0; i < run.elements; ++i) elements.at(run.begin + i) = true;
        }
      }
    }
    for (const auto& [copy, elements] : held) {
      ASSERT_EQ(std::count(elements.begin(), elements.end(), true), state.tensor_elements);
    }
  }
}

TEST_F(AnyLayoutTest, RunsLieInTheBufferApartAndAreSortedAndAsFewAsCanBe) {
  std::mt19937 random(13);
  for (int round = 0; round < kRounds; ++round) {
    const RandomState state(&random);
    SCOPED_TRACE(state.grid.ShortDebugString() + "; " + state.ranges[0].ShortDebugString());
    for (uint32_t rank = 0; rank < RanksOf(state.grid); ++rank) {
      std::vector<bool> used(state.BufferElements());
      for (const v1::StateRange& range : state.ranges) {
        const std::vector<StateRun> runs =
            RunsOf(range, state.grid, CoordinatesOf(state.grid, rank));
        for (size_t i = 0; i < runs.size(); ++i) {
          ASSERT_GT(runs[i].elements, 0);
          ASSERT_EQ(runs[i].offset % 4, 0);
          for (int64_t e = 0; e < runs[i].elements; ++e) {
            ASSERT_FALSE(used.at(runs[i].offset / 4 + e));
            used[runs[i].offset / 4 + e] = true;
          }
          if (i == 0) continue;
          const int64_t end = runs[i - 1].begin + runs[i - 1].elements;
          ASSERT_LE(end, runs[i].begin);
          ASSERT_FALSE(end == runs[i].begin &&
                       runs[i - 1].offset + runs[i - 1].elements * 4 == runs[i].offset)
              << "could be one run";
        }
      }
    }
  }
}

// The words of program.proto, element by element.
TEST_F(AnyLayoutTest, EveryElementLiesWhereTheContractSays) {
  std::mt19937 random(14);
  for (int round = 0; round < kRounds; ++round) {
    const RandomState state(&random);
    SCOPED_TRACE(state.grid.ShortDebugString() + "; " + state.ranges[0].ShortDebugString());
    for (uint32_t rank = 0; rank < RanksOf(state.grid); ++rank) {
      const Coordinates place = CoordinatesOf(state.grid, rank);
      for (const v1::StateRange& range : state.ranges) {
        std::map<int64_t, int64_t> expected, found;  // element -> byte
        const int64_t moved = place.tensor / std::max(1u, range.split_block());
        for (int64_t r = 0; r < range.rows(); ++r) {
          for (int64_t c = 0; c < range.columns(); ++c) {
            int64_t row = range.row() + r, column = range.column() + c;
            if (range.split() == v1::StateRange::BY_ROWS) row += moved * range.rows();
            if (range.split() == v1::StateRange::BY_COLUMNS) column += moved * range.columns();
            if (row >= RowsOf(range) || column >= ColumnsOf(range)) continue;
            int64_t position = range.offset() / 4 + r * range.row_stride() + c;
            if (const int64_t shard = range.shard_elements(); shard > 0) {
              position -= ShardIndex(state.grid, place) * shard;
              if (position < 0 || position >= shard) continue;
            }
            expected[row * ColumnsOf(range) + column] = position * 4;
          }
        }
        for (const StateRun& run : RunsOf(range, state.grid, place)) {
          for (int64_t i = 0; i < run.elements; ++i) found[run.begin + i] = run.offset + i * 4;
        }
        ASSERT_EQ(found, expected);
      }
    }
  }
}

}  // namespace
}  // namespace terrace
