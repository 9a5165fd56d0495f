// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "coordinator/compiler/pack/orders.h"
#include "coordinator/compiler/pack/pages.h"
#include "tests/unit/coordinator/compiler/pack/data.h"
#include "tests/unit/coordinator/compiler/pack/programs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void ExpectValid(const std::vector<PackBuffer>& buffers, const Packing& packing) {
  ASSERT_EQ(packing.offsets.size(), buffers.size());
  EXPECT_EQ(FirstOverlap(buffers, packing), "");
  EXPECT_EQ(packing.lower_bound_bytes, LowerBound(buffers));
  EXPECT_GE(packing.arena_bytes, packing.lower_bound_bytes);
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(packing.offsets[i] % kPackAlignment, 0);
    EXPECT_GE(packing.offsets[i], 0);
    EXPECT_LE(packing.offsets[i] + buffers[i].bytes, packing.arena_bytes);
  }
}

Packing PackOrDie(const std::vector<PackBuffer>& buffers) {
  const auto packing = Pack(buffers);
  EXPECT_TRUE(packing.ok()) << packing.status();
  return packing.value_or(Packing{});
}

TEST(PackTest, NothingTakesNothing) {
  const Packing packing = PackOrDie({});
  EXPECT_EQ(packing.arena_bytes, 0);
  EXPECT_EQ(packing.lower_bound_bytes, 0);
}

TEST(PackTest, BuffersThatNeverMeetShareBytes) {
  const Packing packing = PackOrDie({{.name = "a", .bytes = 512, .begin = 0, .end = 5},
                                     {.name = "b", .bytes = 512, .begin = 5, .end = 9}});
  EXPECT_THAT(packing.offsets, ElementsAre(0, 0));
  EXPECT_EQ(packing.arena_bytes, 512);
}

// As in the body of a loop: while one iteration's value is gone and the next not there yet, its
// bytes are another's.
TEST(PackTest, BytesBetweenTwoLivesOfABufferAreFree) {
  const std::vector<PackBuffer::Life> lives = {{0, 2}, {4, 6}, {8, 10}};
  const std::vector<PackBuffer::Life> others = {{2, 4}, {6, 8}};
  const std::vector<PackBuffer> buffers = {
      {.name = "loop", .bytes = 512, .begin = 0, .end = 10, .lives = lives},
      {.name = "other", .bytes = 512, .begin = 2, .end = 8, .lives = others},
      {.name = "late", .bytes = 256, .begin = 2, .end = 4}};
  const Packing packing = PackOrDie(buffers);
  EXPECT_EQ(packing.offsets[0], packing.offsets[1]);
  EXPECT_EQ(packing.lower_bound_bytes, 768);
  EXPECT_EQ(packing.arena_bytes, 768);
}

TEST(PackTest, BuffersThatMeetInOneOfTheirLivesDoNotShare) {
  const Packing packing =
      PackOrDie({{.name = "loop", .bytes = 512, .begin = 0, .end = 6, .lives = {{0, 2}, {4, 6}}},
                 {.name = "other", .bytes = 512, .begin = 2, .end = 5}});
  EXPECT_EQ(packing.arena_bytes, 1024);
  EXPECT_EQ(packing.lower_bound_bytes, 1024);
}

TEST(PackTest, BuffersThatMeetForOneMomentDoNot) {
  const Packing packing = PackOrDie({{.name = "a", .bytes = 512, .begin = 0, .end = 6},
                                     {.name = "b", .bytes = 512, .begin = 5, .end = 9}});
  EXPECT_EQ(packing.arena_bytes, 1024);
  EXPECT_EQ(packing.lower_bound_bytes, 1024);
}

TEST(PackTest, SizesAreRoundedUpToTheAlignment) {
  const Packing packing = PackOrDie({{.name = "a", .bytes = 1, .begin = 0, .end = 2},
                                     {.name = "b", .bytes = 257, .begin = 0, .end = 2}});
  EXPECT_EQ(packing.arena_bytes, 3 * kPackAlignment);
}

TEST(PackTest, NonsenseIsRefusedWithTheBuffer) {
  EXPECT_THAT(
      std::string(Pack({{{.name = "w", .bytes = 0, .begin = 0, .end = 1}}}).status().message()),
      AllOf(HasSubstr("'w'"), HasSubstr("at least 1")));
  EXPECT_THAT(
      std::string(Pack({{{.name = "w", .bytes = 8, .begin = 3, .end = 3}}}).status().message()),
      AllOf(HasSubstr("'w'"), HasSubstr("[3, 3)")));
}

// What a forward and a backward pass leave behind: a pyramid, with short-lived scratch on its way.
TEST(PackTest, APyramidOfActivationsReachesTheBound) {
  std::vector<PackBuffer> buffers;
  constexpr int64_t kLayers = 40;
  for (int64_t i = 0; i < kLayers; ++i) {
    buffers.push_back(
        {.name = "kept", .bytes = 4096 * (1 + i % 3), .begin = 2 * i, .end = 4 * kLayers - 2 * i});
    buffers.push_back({.name = "scratch", .bytes = 64 << 10, .begin = 2 * i + 1, .end = 2 * i + 2});
    buffers.push_back({.name = "grad",
                       .bytes = 4096,
                       .begin = 4 * kLayers - 2 * i - 1,
                       .end = 4 * kLayers - 2 * i + 1});
  }
  const Packing packing = PackOrDie(buffers);
  ExpectValid(buffers, packing);
  EXPECT_LE(packing.arena_bytes, packing.lower_bound_bytes * 1.005);
}

std::vector<PackBuffer> RandomBuffers(uint32_t seed, int most) {
  std::mt19937 random(seed);
  std::vector<PackBuffer> buffers;
  const int count = 1 + static_cast<int>(random() % most);
  const int64_t times = 1 + random() % 60;
  for (int i = 0; i < count; ++i) {
    const int64_t begin = random() % times;
    buffers.push_back({.name = std::to_string(i),
                       .bytes = 1 + static_cast<int64_t>(random() % (1 << (random() % 20))),
                       .begin = begin,
                       .end = begin + 1 + static_cast<int64_t>(random() % times)});
  }
  return buffers;
}

TEST(PackTest, RandomBuffersAreValidAndDeterministic) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto buffers = RandomBuffers(seed, 150);
    const Packing packing = PackOrDie(buffers);
    ExpectValid(buffers, packing);
    EXPECT_EQ(PackOrDie(buffers).offsets, packing.offsets);
  }
}

TEST(PackTest, EqualBuffersAreToldApartByIndexOnly) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<PackBuffer> buffers = RandomBuffers(seed, 40);
    for (size_t i = 0; i + 1 < buffers.size(); i += 2) {  // pairs of equals
      buffers[i + 1] = buffers[i];
      buffers[i + 1].name += " again";
    }
    const Packing packing = PackOrDie(buffers);
    for (size_t i = 0; i + 1 < buffers.size(); i += 2) std::swap(buffers[i], buffers[i + 1]);
    EXPECT_EQ(PackOrDie(buffers).offsets, packing.offsets);
  }
}

TEST(PackTest, NoOrderOfThePortfolioIsBetter) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto buffers = RandomBuffers(seed, 100);
    const PackProblem problem = MakePackProblem(buffers);
    const Packing packing = PackOrDie(buffers);
    const int64_t good_enough = problem.lower_bound_bytes * 201 / 200;
    for (const PackStrategy& strategy : PackPortfolio()) {
      const auto placement = PlaceInOrder(problem, MakePackOrder(problem, strategy));
      EXPECT_LE(packing.arena_bytes, std::max(placement.arena_bytes, good_enough));
    }
  }
}

TEST(PackTest, ARealTrainingTraceIsWithinOnePercentOfTheBound) {
  const auto buffers = ReadPackBuffers(TERRACE_PACK_DATA "/pangu_2.6B.csv");
  ASSERT_EQ(buffers.size(), 18692u);
  const Packing packing = PackOrDie(buffers);
  ExpectValid(buffers, packing);
  EXPECT_LE(packing.arena_bytes, packing.lower_bound_bytes * 1.008);
}

// In one piece each, or with the processor's pages for the few that orders leave more than 1 %
// over.
TEST(PackTest, TrainingProgramsAreWithinOnePercentOfTheBound) {
  int paged = 0;
  for (const ProgramShape& shape : TrainingProgramShapes()) {
    SCOPED_TRACE(shape.name);
    const auto buffers = MakeProgramLives(shape);
    const Packing packing = PackOrDie(buffers);
    ExpectValid(buffers, packing);
    const int64_t most = packing.lower_bound_bytes + packing.lower_bound_bytes / 100;
    if (packing.arena_bytes <= most) continue;
    ++paged;
    const auto pages = PackIntoPages({{{MakePackProblem(buffers), packing.offsets}}},
                                     {.page_bytes = PackPageBytes("cpu", packing.arena_bytes)});
    ASSERT_TRUE(pages.has_value()) << packing.arena_bytes << " of " << packing.lower_bound_bytes;
    EXPECT_LE(pages->arena_bytes, most);
  }
  EXPECT_LT(paged, 20);
}

// One order is enough for the stages of a large model: that is what makes compiling them quick.
TEST(PackTest, StagesOfALargeModelAreGoodAfterTwoOrders) {
  for (int stage = 0; stage < 16; ++stage) {
    SCOPED_TRACE(stage);
    const PackProblem problem = MakePackProblem(MakeProgramLives(LargeStage(stage, 128)));
    ASSERT_GT(problem.items.size(), 25000u);
    int64_t arena_bytes = std::numeric_limits<int64_t>::max();
    for (const PackStrategy& strategy : PackPortfolio().first(2)) {
      const auto placement = PlaceInOrder(problem, MakePackOrder(problem, strategy));
      arena_bytes = std::min(arena_bytes, placement.arena_bytes);
    }
    EXPECT_LE(arena_bytes, problem.lower_bound_bytes * 1.005);
  }
}

TEST(PackTest, WhatLivesThroughEverythingLiesAtTheBottom) {
  std::vector<PackBuffer> buffers = RandomBuffers(1, 60);
  int64_t end = 0;
  for (const PackBuffer& buffer : buffers) end = std::max(end, buffer.end);
  buffers.push_back({.name = "whole", .bytes = 256, .begin = 0, .end = end});
  const PackProblem problem = MakePackProblem(buffers);
  for (const PackStrategy& strategy : PackPortfolio()) {
    EXPECT_EQ(MakePackOrder(problem, strategy).front(), static_cast<int>(buffers.size()) - 1);
  }
}

}  // namespace
}  // namespace terrace
