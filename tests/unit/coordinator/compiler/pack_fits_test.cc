// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_fits.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/pack_data.h"

namespace terrace {
namespace {

// Two micro-batches in flight on a stage whose embedding is gathered before each forward pass and
// has its gradient after each backward pass, as with ZeRO-3: the two meet for a moment, at the
// peak, and need large holes while the frame of the other micro-batch lies between.
std::vector<PackBuffer> TwoFrames(int micro_batches) {
  constexpr int64_t kMib = 1 << 20;
  constexpr int64_t kLayers = 6;
  std::vector<PackBuffer> buffers;
  const auto add = [&](const char* name, int64_t mib, int64_t begin, int64_t end) {
    buffers.push_back({.name = name, .bytes = mib * kMib, .begin = begin, .end = end});
  };
  for (int64_t i = 0; i < micro_batches; ++i) {
    const int64_t forward = 100 * i, backward = forward + 150;
    add("gathered.embedding", 154, forward - 20, forward + 1);
    add("grads.embedding", 154, backward + 45, backward + 53);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t there = forward + 2 + 8 * layer;
      const int64_t back = backward + 8 * (kLayers - 1 - layer);
      for (const int64_t mib : {12, 6, 6, 3, 3}) add("kept", mib, there, back + 5);
      add("gathered", 28, there - 8, there + 8);
      add("gathered.again", 28, back - 8, back + 8);
      add("grads", 28, back, back + 16);
    }
  }
  return buffers;
}

TEST(PackFitsTest, PlacementsAreValidAndDeterministic) {
  const std::vector<PackBuffer> buffers = TwoFrames(6);
  const PackProblem problem = MakePackProblem(buffers);
  const int64_t ceiling = problem.lower_bound_bytes;
  const PackPlacement placement = PackBelow(problem, ceiling, 20'000);
  ASSERT_EQ(placement.offsets.size(), buffers.size());
  EXPECT_EQ(FirstOverlap(buffers, {.offsets = placement.offsets}), "");
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_GE(placement.offsets[i], 0);
    EXPECT_LE(placement.offsets[i] + problem.items[i].bytes, placement.arena_bytes);
  }
  EXPECT_EQ(PackBelow(problem, ceiling, 20'000).offsets, placement.offsets);
}

TEST(PackFitsTest, MorePlacementsAreNeverWorse) {
  const PackProblem problem = MakePackProblem(TwoFrames(4));
  const int64_t ceiling = problem.lower_bound_bytes;
  const int64_t one = static_cast<int64_t>(problem.items.size()) * 3 / 2 + 1;
  const PackPlacement few = PackBelow(problem, ceiling, one);
  const PackPlacement many = PackBelow(problem, ceiling, 100 * one);
  ASSERT_FALSE(few.offsets.empty());
  EXPECT_LE(many.arena_bytes, few.arena_bytes);
}

TEST(PackFitsTest, WithoutPlacementsThereIsNothing) {
  const PackProblem problem = MakePackProblem(TwoFrames(2));
  EXPECT_TRUE(PackBelow(problem, problem.lower_bound_bytes, 0).offsets.empty());
}

TEST(PackFitsTest, FramesLeaveHolesForWhatComesBetweenThem) {
  const std::vector<PackBuffer> buffers = TwoFrames(8);
  const auto packing = Pack(buffers);
  ASSERT_TRUE(packing.ok()) << packing.status();
  EXPECT_EQ(FirstOverlap(buffers, *packing), "");
  EXPECT_LE(static_cast<double>(packing->arena_bytes), 1.01 * packing->lower_bound_bytes);
}

}  // namespace
}  // namespace terrace
