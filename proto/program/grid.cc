// SPDX-License-Identifier: Apache-2.0
#include "proto/program/grid.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// From the fastest to the slowest.
constexpr v1::Axis kAxes[] = {v1::TENSOR, v1::CONTEXT, v1::DATA_SHARD, v1::DATA_REPLICA,
                              v1::PIPELINE};

uint32_t& On(Coordinates* coordinates, v1::Axis axis) {
  switch (axis) {
    case v1::TENSOR:
      return coordinates->tensor;
    case v1::CONTEXT:
      return coordinates->context;
    case v1::DATA_SHARD:
      return coordinates->shard;
    case v1::DATA_REPLICA:
      return coordinates->replica;
    default:
      return coordinates->stage;
  }
}

// The values that a member of the group may have on `axis`, given those of `own`.
std::vector<uint32_t> ValuesOn(const v1::Grid& grid, const v1::Group& group, v1::Axis axis,
                               const Coordinates& own) {
  Coordinates copy = own;
  const uint32_t value = On(&copy, axis);
  if (!HasAxis(group, axis)) return {value};
  if (axis == v1::PIPELINE && group.stages_size() > 0) {
    std::vector<uint32_t> stages(group.stages().begin(), group.stages().end());
    std::sort(stages.begin(), stages.end());
    return stages;
  }
  uint32_t begin = 0, end = AxisSize(grid, axis);
  if (axis == v1::TENSOR && group.tensor_block() > 0) {
    begin = value / group.tensor_block() * group.tensor_block();
    end = std::min(end, begin + group.tensor_block());
  }
  uint32_t step = 1;
  if (axis == v1::DATA_SHARD && group.shard_block() > 0) {
    begin = value / group.shard_block() * group.shard_block();
    end = std::min(end, begin + group.shard_block());
  } else if (axis == v1::DATA_SHARD && group.shard_stride() > 0) {
    begin = value % group.shard_stride();
    step = group.shard_stride();
  }
  std::vector<uint32_t> values;
  for (uint32_t v = begin; v < end; v += step) values.push_back(v);
  return values;
}

}  // namespace

uint32_t AxisSize(const v1::Grid& grid, v1::Axis axis) {
  const auto at_least_one = [](uint32_t size) { return std::max(1u, size); };
  switch (axis) {
    case v1::TENSOR:
      return at_least_one(grid.tensor());
    case v1::CONTEXT:
      return at_least_one(grid.context());
    case v1::DATA_SHARD:
      return at_least_one(grid.data_shard());
    case v1::DATA_REPLICA:
      return at_least_one(grid.data_replica());
    case v1::PIPELINE:
      return at_least_one(grid.pipeline());
    default:
      return 1;
  }
}

uint64_t RanksOf(const v1::Grid& grid) {
  uint64_t ranks = 1;
  for (v1::Axis axis : kAxes) ranks *= AxisSize(grid, axis);
  return ranks;
}

Coordinates CoordinatesOf(const v1::Grid& grid, uint32_t rank) {
  Coordinates coordinates;
  for (v1::Axis axis : kAxes) {
    On(&coordinates, axis) = rank % AxisSize(grid, axis);
    rank /= AxisSize(grid, axis);
  }
  return coordinates;
}

uint32_t RankOf(const v1::Grid& grid, const Coordinates& coordinates) {
  Coordinates copy = coordinates;
  uint32_t rank = 0;
  for (size_t i = std::size(kAxes); i-- > 0;) {
    rank = rank * AxisSize(grid, kAxes[i]) + On(&copy, kAxes[i]);
  }
  return rank;
}

uint32_t DataIndex(const v1::Grid& grid, const Coordinates& coordinates) {
  return coordinates.replica * AxisSize(grid, v1::DATA_SHARD) + coordinates.shard;
}

uint32_t ShardIndex(const v1::Grid& grid, const Coordinates& coordinates) {
  return coordinates.shard * AxisSize(grid, v1::CONTEXT) + coordinates.context;
}

uint32_t ShardCount(const v1::Grid& grid) {
  return AxisSize(grid, v1::CONTEXT) * AxisSize(grid, v1::DATA_SHARD);
}

std::vector<uint32_t> GroupMembers(const v1::Grid& grid, const v1::Group& group, uint32_t rank) {
  const Coordinates own = CoordinatesOf(grid, rank);
  if (!HasStage(group, own.stage)) return {};
  std::vector<Coordinates> members = {own};
  for (v1::Axis axis : kAxes) {
    std::vector<Coordinates> next;
    for (uint32_t value : ValuesOn(grid, group, axis, own)) {
      for (Coordinates member : members) {
        On(&member, axis) = value;
        next.push_back(member);
      }
    }
    members = std::move(next);
  }
  std::vector<uint32_t> ranks;
  for (const Coordinates& member : members) ranks.push_back(RankOf(grid, member));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

uint32_t MembersOn(const v1::Grid& grid, const v1::Group& group, v1::Axis axis) {
  const uint32_t all = AxisSize(grid, axis);
  if (!HasAxis(group, axis)) return 1;
  if (axis == v1::PIPELINE && group.stages_size() > 0) return group.stages_size();
  if (axis == v1::TENSOR && group.tensor_block() > 0) return std::min(group.tensor_block(), all);
  if (axis != v1::DATA_SHARD) return all;
  if (group.shard_block() > 0) return std::min(group.shard_block(), all);
  return group.shard_stride() > 0 ? (all - 1) / group.shard_stride() + 1 : all;
}

uint32_t GroupSize(const v1::Grid& grid, const v1::Group& group) {
  uint32_t size = 1;
  for (v1::Axis axis : kAxes) size *= MembersOn(grid, group, axis);
  return size;
}

bool IsOfPartOfShards(const v1::Group& group) {
  return group.shard_block() > 0 || group.shard_stride() > 0;
}

bool HasAxis(const v1::Group& group, v1::Axis axis) {
  return std::find(group.axes().begin(), group.axes().end(), axis) != group.axes().end();
}

bool HasStage(const v1::Group& group, uint32_t stage) {
  if (!HasAxis(group, v1::PIPELINE) || group.stages_size() == 0) return true;
  return std::find(group.stages().begin(), group.stages().end(), stage) != group.stages().end();
}

std::string Describe(const v1::Grid& grid, const Coordinates& coordinates) {
  std::string text;
  const auto add = [&](uint32_t size, const char* name, uint32_t value) {
    if (size > 1) absl::StrAppend(&text, text.empty() ? "" : " ", name, value);
  };
  add(AxisSize(grid, v1::DATA_SHARD) * AxisSize(grid, v1::DATA_REPLICA), "dp",
      DataIndex(grid, coordinates));
  add(AxisSize(grid, v1::PIPELINE), "stage", coordinates.stage);
  add(AxisSize(grid, v1::TENSOR), "tp", coordinates.tensor);
  add(AxisSize(grid, v1::CONTEXT), "cp", coordinates.context);
  return text.empty() ? "the only rank" : text;
}

}  // namespace terrace
