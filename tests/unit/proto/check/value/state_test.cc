// The state of all ranks of a job: decided symbolically, compared with counting every element on
// every rank.
//
// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "proto/program/grid.h"
#include "proto/program/state_layout.h"

namespace terrace {
namespace {

using testing::HasSubstr;

v1::Program Empty(uint32_t tensor, uint32_t context, uint32_t shard, uint32_t replica) {
  v1::Program program;
  program.set_stages(1);
  program.mutable_grid()->set_tensor(tensor);
  program.mutable_grid()->set_context(context);
  program.mutable_grid()->set_data_shard(shard);
  program.mutable_grid()->set_data_replica(replica);
  program.set_ranks(static_cast<uint32_t>(RanksOf(program.grid())));
  return program;
}

uint32_t AddBuffer(int64_t elements, v1::Program* program) {
  v1::Buffer* buffer = program->add_buffers();
  buffer->set_id(program->buffers_size() - 1);
  buffer->set_bytes(elements * 4);
  buffer->set_lifetime(v1::PERSISTENT);
  return buffer->id();
}

v1::StateRange* AddRange(const std::string& tensor, int64_t tensor_rows, int64_t tensor_columns,
                         uint32_t buffer, v1::Program* program) {
  v1::StateRange* range = program->add_state();
  range->set_tensor(tensor);
  range->set_kind(v1::WEIGHT);
  range->set_dtype(v1::F32);
  range->add_shape(tensor_rows);
  range->add_shape(tensor_columns);
  range->set_rows(tensor_rows);
  range->set_columns(tensor_columns);
  range->set_row_stride(tensor_columns);
  range->set_buffer(buffer);
  return range;
}

std::string Message(const v1::Program& program) {
  return std::string(check::CheckState(program).message());
}

// How often the owners among all ranks hold each element of a tensor.
std::vector<int> OwnedTimes(const v1::Program& program) {
  const v1::StateRange& first = program.state(0);
  std::vector<int> times(RowsOf(first) * ColumnsOf(first), 0);
  for (uint32_t rank = 0; rank < program.ranks(); ++rank) {
    const Coordinates place = CoordinatesOf(program.grid(), rank);
    for (const v1::StateRange& range : program.state()) {
      if (!OwnsState(range, program.grid(), place)) continue;
      for (const StateRun& run : RunsOf(range, program.grid(), place)) {
        for (int64_t e = 0; e < run.elements; ++e) ++times[run.begin + e];
      }
    }
  }
  return times;
}

// A tensor cut at random into rectangles, some of them split and padded, some rectangles then
// moved, resized or left out.
v1::Program RandomManifest(std::mt19937* random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>((*random)() % n); };
  const uint32_t tensor_sizes[] = {1, 2, 4};
  v1::Program program = Empty(tensor_sizes[below(3)], 1 + below(2), 1 + below(3), 1 + below(2));
  const int64_t rows = 1 + below(12), columns = 1 + below(12);
  const bool sharded = below(2) == 0;
  const int64_t shards = ShardCount(program.grid());
  const int64_t cut = 1 + below(columns);
  int64_t place = 0;
  std::vector<v1::StateRange*> ranges;
  for (const auto& [begin, end] : {std::pair(int64_t{0}, cut), std::pair(cut, columns)}) {
    if (begin == end) continue;
    v1::StateRange* range = AddRange("w", rows, columns, 0, &program);
    range->set_column(begin);
    range->set_columns(end - begin);
    const uint32_t blocks[] = {1, 1, 2};
    range->set_split_block(std::min(program.grid().tensor(), blocks[below(3)]));
    const int64_t parts = program.grid().tensor() / range->split_block();
    switch (below(3)) {
      case 0:
        range->set_split(v1::StateRange::BY_ROWS);
        range->set_rows((rows + parts - 1) / parts);
        break;
      case 1:
        // Only the last columns may reach over the edge; others must divide.
        if (end < columns && range->columns() % parts != 0) break;
        range->set_split(v1::StateRange::BY_COLUMNS);
        range->set_columns((range->columns() + parts - 1) / parts);
        break;
      default:
        break;
    }
    if (below(6) == 0) range->set_rows(range->rows() + (below(2) == 0 ? 1 : -1));
    if (below(6) == 0) range->set_column(std::max<int64_t>(0, range->column() - 1));
    if (below(8) == 0) range->set_columns(range->columns() - 1);
    range->set_row_stride(std::max<int64_t>(range->columns(), 1));
    range->set_offset(place * 4);
    place += std::max<int64_t>(range->rows(), 1) * range->row_stride();
    ranges.push_back(range);
  }
  const int64_t shard_elements = (place + shards - 1) / shards;
  AddBuffer(sharded ? shard_elements : place, &program);
  for (v1::StateRange* range : ranges) range->set_shard_elements(sharded ? shard_elements : 0);
  return program;
}

TEST(CheckStateTest, CoversAreJudgedAsByCountingOnEveryRank) {
  std::mt19937 random(20261122);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const v1::Program program = RandomManifest(&random);
    const std::string message = Message(program);
    // Other rules first: sizes of nothing, and padding where there is no split.
    const bool about_cover = message.empty() || message.find("is held") != std::string::npos;
    if (!about_cover) continue;
    const std::vector<int> times = OwnedTimes(program);
    const bool once = std::all_of(times.begin(), times.end(), [](int t) { return t == 1; });
    EXPECT_EQ(message.empty(), once) << message << "\n" << program.DebugString();
    ++(once ? accepted : refused);
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 200);
}

TEST(CheckStateTest, TheFirstElementThatIsWrongIsNamed) {
  v1::Program program = Empty(2, 1, 1, 1);
  v1::StateRange* range = AddRange("w", 4, 6, AddBuffer(64, &program), &program);
  range->set_split(v1::StateRange::BY_COLUMNS);
  range->set_columns(2);
  range->set_row_stride(2);
  EXPECT_THAT(Message(program), HasSubstr("element 4 of 24 is held by no range"));
  v1::StateRange* more = AddRange("w", 4, 6, 0, &program);
  more->set_column(3);
  more->set_columns(3);
  more->set_row_stride(3);
  more->set_offset(64);
  EXPECT_THAT(Message(program), HasSubstr("element 3 is held twice"));
  more->set_column(4);
  more->set_columns(2);
  EXPECT_EQ(Message(program), "");
}

TEST(CheckStateTest, RowsOfTwoTensorsMayAlternateInMemoryButNotShareIt) {
  v1::Program program = Empty(1, 1, 1, 1);
  const uint32_t buffer = AddBuffer(4 * 5, &program);
  v1::StateRange* a = AddRange("a", 4, 2, buffer, &program);
  a->set_row_stride(5);
  v1::StateRange* b = AddRange("b", 4, 3, buffer, &program);
  b->set_row_stride(5);
  b->set_offset(2 * 4);
  EXPECT_EQ(Message(program), "");
  b->set_offset(1 * 4);
  EXPECT_THAT(Message(program), HasSubstr("overlap in buffer 0"));
}

TEST(CheckStateTest, OverlapsAreThoseOfCountingEachElement) {
  std::mt19937 random(26);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  int refused = 0;
  constexpr int kDraws = 2000;
  for (int draw = 0; draw < kDraws; ++draw) {
    v1::Program program = Empty(1, 1, 1, 1);
    constexpr int64_t kElements = 60;
    const uint32_t buffer = AddBuffer(kElements, &program);
    const int64_t stride = 4 + below(5);
    std::vector<int> holders(kElements, 0);
    for (int k = 0; k < 3; ++k) {
      const int64_t columns = 1 + below(3), rows = 1 + below(5);
      // Now and then one whose rows lie otherwise.
      const int64_t own = below(4) == 0 ? columns + below(4) : stride;
      v1::StateRange* range = AddRange("w" + std::to_string(k), rows, columns, buffer, &program);
      range->set_row_stride(own);
      const int64_t offset = below(kElements - (rows - 1) * own - columns + 1);
      range->set_offset(offset * 4);
      for (int64_t i = 0; i < rows * columns; ++i)
        ++holders[offset + i / columns * own + i % columns];
    }
    const bool twice = *std::max_element(holders.begin(), holders.end()) > 1;
    EXPECT_EQ(Message(program).find("overlap in buffer 0") != std::string::npos, twice)
        << "draw " << draw << ": " << Message(program);
    refused += twice;
  }
  EXPECT_GT(refused, kDraws / 10);
  EXPECT_LT(refused, kDraws * 9 / 10);
}

// Weights of queries, keys and values side by side in one matrix, in a model of 175 billion: what
// lies in rows is not walked row by row.
TEST(CheckStateTest, MatricesSideBySideMayHaveAnyNumberOfRows) {
  v1::Program program = Empty(1, 1, 1, 1);
  constexpr int64_t kRows = int64_t{1} << 30, kColumns = 128;
  const uint32_t buffer = AddBuffer(3 * kRows * kColumns, &program);
  for (int k = 0; k < 3; ++k) {
    v1::StateRange* range = AddRange("w" + std::to_string(k), kRows, kColumns, buffer, &program);
    range->set_row_stride(3 * kColumns);
    range->set_offset(k * kColumns * 4);
  }
  EXPECT_EQ(Message(program), "");
  program.mutable_state(2)->set_offset((2 * kColumns - 1) * 4);
  EXPECT_THAT(Message(program), HasSubstr("overlap in buffer 0"));
}

TEST(CheckStateTest, ShardsOfOneRegionAreAlike) {
  v1::Program program = Empty(1, 2, 2, 1);
  const uint32_t buffer = AddBuffer(4, &program);
  AddRange("a", 2, 5, buffer, &program)->set_shard_elements(4);
  v1::StateRange* b = AddRange("b", 1, 6, buffer, &program);
  b->set_shard_elements(4);
  b->set_offset(10 * 4);
  EXPECT_EQ(Message(program), "");
  b->set_offset(11 * 4);
  EXPECT_THAT(Message(program), HasSubstr("all shards 64 bytes"));
  b->set_offset(10 * 4);
  b->set_shard_elements(3);
  EXPECT_THAT(Message(program), HasSubstr("must"));
}

TEST(CheckStateTest, CopiesAndOwnedPartsOfATensorDoNotMix) {
  v1::Program program = Empty(1, 1, 1, 1);
  const uint32_t buffer = AddBuffer(8, &program);
  AddRange("w", 2, 4, buffer, &program)->set_rows(1);
  v1::StateRange* rest = AddRange("w", 2, 4, buffer, &program);
  rest->set_row(1);
  rest->set_rows(1);
  rest->set_offset(16);
  EXPECT_EQ(Message(program), "");
  rest->set_copy(true);
  EXPECT_THAT(Message(program), HasSubstr("differ in shape, type or copy"));
}

// Llama 3 405B on one stage: 126 layers of 9 tensors in three kinds, tensor parallel over 8, in
// shards of 128. The bound leaves a margin for other work on the machine.
TEST(CheckStateTest, AThousandTensorsOnAThousandRanksTakeNoTime) {
  v1::Program program = Empty(8, 1, 128, 1);
  constexpr int64_t kHidden = 16384, kInner = 53248;
  for (int layer = 0; layer < 126; ++layer) {
    for (v1::StateKind kind : {v1::WEIGHT, v1::FIRST_MOMENT, v1::SECOND_MOMENT}) {
      const uint32_t buffer = AddBuffer(4 * kHidden * kInner / 128, &program);
      int64_t place = 0;
      for (int t = 0; t < 9; ++t) {
        const bool columns = t % 3 == 0;
        v1::StateRange* range =
            AddRange("layers." + std::to_string(layer) + "." + std::to_string(t),
                     columns ? kHidden : kInner, columns ? kInner : kHidden, buffer, &program);
        range->set_kind(kind);
        range->set_split(columns ? v1::StateRange::BY_COLUMNS : v1::StateRange::BY_ROWS);
        (columns ? range->set_columns(kInner / 8) : range->set_rows(kInner / 8));
        range->set_row_stride(range->columns());
        range->set_offset(place * 4);
        range->set_shard_elements(4 * kHidden * kInner / 128);
        place += range->rows() * range->columns();
      }
    }
  }
  EXPECT_EQ(program.state_size(), 3402);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(check::CheckState(program), absl::OkStatus());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 1.0);
}

}  // namespace
}  // namespace terrace
