// Which elements of the job's tensors a rank holds, and where: v1::StateRange resolved for one
// rank.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/program/grid.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Elements [begin, begin + elements) of the global tensor (row-major) lie one after the other from
// byte `offset` of the range's buffer on.
struct StateRun {
  int64_t begin = 0;
  int64_t elements = 0;
  int64_t offset = 0;
  bool operator==(const StateRun&) const = default;
};

// The part of the range that a rank holds, as a matrix: its row r lies from element position +
// r * row_stride of the range's buffer on, and is that of the global tensor from element begin +
// r * tensor_columns on. Of a shard the buffer is a piece of it: positions may lie before the
// buffer, or behind its end. No rows or no columns: nothing.
struct StateRectangle {
  int64_t rows = 0, columns = 0;
  int64_t position = 0, row_stride = 0;
  int64_t begin = 0, tensor_columns = 0;
};
// Rows that are whole in the tensor and dense in memory are one row. REQUIRES: as RunsOf.
StateRectangle RectangleOf(const v1::StateRange& range, const v1::Grid& grid,
                           const Coordinates& rank);

// By `begin`; as few as there can be; none when the rank holds only padding or nothing of the
// range. REQUIRES: sizes are not negative and their products do not overflow
// (proto/check/value/state.h).
std::vector<StateRun> RunsOf(const v1::StateRange& range, const v1::Grid& grid,
                             const Coordinates& rank);

// True for exactly one of the ranks that hold the same elements of the range: the one that writes
// them to a checkpoint.
bool OwnsState(const v1::StateRange& range, const v1::Grid& grid, const Coordinates& rank);

// Of a tensor's moments in blocks that share a scale: the shape of the scales
// (FIRST_MOMENT_SCALES). Where columns are whole blocks they have as many rows of fewer columns,
// else they are one row.
std::vector<int64_t> ScalesShape(const std::vector<int64_t>& shape, int64_t block);
// The kinds of a tensor's moments in their order, and of the scales of these.
inline constexpr v1::StateKind kMomentKinds[] = {v1::FIRST_MOMENT, v1::SECOND_MOMENT};
inline constexpr v1::StateKind kScalesKinds[] = {v1::FIRST_MOMENT_SCALES, v1::SECOND_MOMENT_SCALES};

// What the state calls the scales of a frozen tensor that rests as codes (Initializer.blocks): a
// tensor of its own of kind WEIGHT, [rows, columns / block]. The codes have the tensor's name and
// are bytes, [rows, columns / elements of a byte].
std::string CodeScalesName(std::string_view tensor);

// The tensor as a matrix; where each rank has its own, all of them.
int64_t RowsOf(const v1::StateRange& range);
int64_t RowsOfARank(const v1::StateRange& range, const v1::Grid& grid);
int64_t ColumnsOf(const v1::StateRange& range);

}  // namespace terrace
