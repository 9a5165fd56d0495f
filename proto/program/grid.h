// Where a rank stands among the ranks of a job, and with whom it communicates: the arithmetic of
// v1::Grid and v1::Group, for the compiler, the checker and the ranks alike.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// Each in [0, size of its axis).
struct Coordinates {
  uint32_t tensor = 0;
  uint32_t context = 0;
  uint32_t shard = 0;    // DATA_SHARD
  uint32_t replica = 0;  // DATA_REPLICA
  uint32_t stage = 0;    // PIPELINE
  bool operator==(const Coordinates&) const = default;
};

// Sizes of 0 count as 1: a program without a grid is for one rank.
uint32_t AxisSize(const v1::Grid& grid, v1::Axis axis);
// The product of the sizes.
uint64_t RanksOf(const v1::Grid& grid);

// REQUIRES: rank < RanksOf(grid).
Coordinates CoordinatesOf(const v1::Grid& grid, uint32_t rank);
uint32_t RankOf(const v1::Grid& grid, const Coordinates& coordinates);

// Which of the data-parallel ranks it is: ranks with the same index see the same sequences.
uint32_t DataIndex(const v1::Grid& grid, const Coordinates& coordinates);
// Its place among the ranks that share sharded states (axes CONTEXT and DATA_SHARD), and how many
// they are.
uint32_t ShardIndex(const v1::Grid& grid, const Coordinates& coordinates);
uint32_t ShardCount(const v1::Grid& grid);

// The members of the instance of `group` that `rank` belongs to, ascending; empty when it belongs
// to none (a stage that is not one of group.stages).
std::vector<uint32_t> GroupMembers(const v1::Grid& grid, const v1::Group& group, uint32_t rank);
// How many values an axis has in an instance of the group, 1 where it is none of its axes.
uint32_t MembersOn(const v1::Grid& grid, const v1::Group& group, v1::Axis axis);
// Whether it has some ranks of the axis DATA_SHARD only.
bool IsOfPartOfShards(const v1::Group& group);
// The size of each instance of the group.
uint32_t GroupSize(const v1::Grid& grid, const v1::Group& group);
bool HasAxis(const v1::Group& group, v1::Axis axis);
// True when `stage` takes part in the group.
bool HasStage(const v1::Group& group, uint32_t stage);

// "dp0 tp1 stage2" for people: the coordinates on axes larger than 1; "the only rank" when there is
// none.
std::string Describe(const v1::Grid& grid, const Coordinates& coordinates);

}  // namespace terrace
