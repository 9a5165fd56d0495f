// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/coordinator/compiler/pack_data.h"

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

TEST(PackTest, RandomBuffersAreValidAndDeterministic) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<PackBuffer> buffers;
    const int count = 1 + static_cast<int>(random() % 150);
    const int64_t times = 1 + random() % 60;
    for (int i = 0; i < count; ++i) {
      const int64_t begin = random() % times;
      buffers.push_back({.name = std::to_string(i),
                         .bytes = 1 + static_cast<int64_t>(random() % (1 << (random() % 20))),
                         .begin = begin,
                         .end = begin + 1 + static_cast<int64_t>(random() % times)});
    }
    const Packing packing = PackOrDie(buffers);
    ExpectValid(buffers, packing);
    EXPECT_EQ(PackOrDie(buffers).offsets, packing.offsets);
  }
}

TEST(PackTest, AdversarialProblemsAreValid) {
  for (const char* name : {"A", "C", "E", "H", "K"}) {
    SCOPED_TRACE(name);
    const auto buffers =
        ReadPackBuffers(std::string(TERRACE_PACK_DATA "/") + name + ".1048576.csv");
    ASSERT_GT(buffers.size(), 100u);
    const Packing packing = PackOrDie(buffers);
    ExpectValid(buffers, packing);
    EXPECT_LE(packing.arena_bytes, packing.lower_bound_bytes * 1.40);
  }
}

TEST(PackTest, ARealTrainingTraceIsWithinOnePercentOfTheBound) {
  const auto buffers = ReadPackBuffers(TERRACE_PACK_DATA "/pangu_2.6B.csv");
  ASSERT_EQ(buffers.size(), 18692u);
  const Packing packing = PackOrDie(buffers);
  ExpectValid(buffers, packing);
  EXPECT_LE(packing.arena_bytes, packing.lower_bound_bytes * 1.01);
}

}  // namespace
}  // namespace terrace
