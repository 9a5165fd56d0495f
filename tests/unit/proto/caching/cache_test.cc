// What the caching allocator promises for single requests; model_test.cc has the random
// sequences.
//
// SPDX-License-Identifier: Apache-2.0
#include "proto/caching/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/unit/proto/caching/fixture.h"
#include "worker/memory/caching_segments.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;

class BlockCacheTest : public testing::Test {
 protected:
  std::byte* Allocate(int64_t bytes, uint32_t stream = 0) {
    const auto data = cache_.Allocate(bytes, stream);
    EXPECT_TRUE(data.ok()) << data.status();
    return data.value_or(nullptr);
  }
  void Free(std::byte* data) { EXPECT_TRUE(cache_.Free(data).ok()); }

  NumberedSegments source_;
  BlockCache cache_{&source_};
};

TEST_F(BlockCacheTest, BlocksAreCutFromOneSegmentAndMergeBackIntoIt) {
  std::byte* a = Allocate(1000);
  std::byte* b = Allocate(1);
  std::byte* c = Allocate(5000);
  EXPECT_EQ(b - a, 1024);
  EXPECT_EQ(c - b, 512);
  EXPECT_EQ(cache_.statistics().reserved_bytes, 2 * kMib);
  EXPECT_EQ(cache_.statistics().allocated_bytes, 1024 + 512 + 5120);
  EXPECT_EQ(cache_.statistics().requested_bytes, 6001);
  EXPECT_EQ(cache_.statistics().largest_free_block_bytes, 2 * kMib - 6656);
  Free(a);
  Free(c);
  EXPECT_EQ(cache_.Snapshot()[0].blocks.size(), 3u);  // c merged with the rest, b is between
  Free(b);
  ASSERT_EQ(cache_.Snapshot()[0].blocks.size(), 1u);
  EXPECT_EQ(cache_.Snapshot()[0].blocks[0].bytes, 2 * kMib);
  EXPECT_EQ(cache_.statistics().ScatteredShare(), 0);
}

TEST_F(BlockCacheTest, TheSmallestBlockThatIsLargeEnoughServes) {
  std::byte* large = Allocate(40 * kMib);
  std::byte* middle = Allocate(30 * kMib);
  std::byte* small = Allocate(20 * kMib);
  Free(large);
  Free(middle);
  Free(small);
  EXPECT_EQ(Allocate(25 * kMib), middle);
  EXPECT_EQ(Allocate(25 * kMib), large);
  EXPECT_EQ(cache_.statistics().reserved_bytes, 90 * kMib);
}

TEST_F(BlockCacheTest, AStreamNeverGetsWhatAnotherFreed) {
  std::byte* first = Allocate(4 * kMib, 1);
  Free(first);
  EXPECT_NE(Allocate(4 * kMib, 2), first);
  EXPECT_EQ(Allocate(4 * kMib, 1), first);
  EXPECT_EQ(cache_.statistics().reserved_bytes, 40 * kMib);
}

TEST_F(BlockCacheTest, RetiredBlocksAreActiveUntilTheyAreFreed) {
  std::byte* data = Allocate(4 * kMib);
  ASSERT_TRUE(cache_.Retire(data).ok());
  EXPECT_EQ(cache_.statistics().allocated_bytes, 0);
  EXPECT_EQ(cache_.statistics().requested_bytes, 0);
  EXPECT_EQ(cache_.statistics().active_bytes, 4 * kMib);
  EXPECT_NE(Allocate(4 * kMib), data);
  Free(data);
  EXPECT_EQ(cache_.statistics().active_bytes, 4 * kMib);  // the second one
  EXPECT_EQ(Allocate(4 * kMib), data);
}

TEST_F(BlockCacheTest, WhatIsNotHeldIsRefusedAndChangesNothing) {
  std::byte* data = Allocate(4 * kMib);
  EXPECT_EQ(cache_.Free(data + 512).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(cache_.Retire(data).ok());
  EXPECT_EQ(cache_.Retire(data).code(), absl::StatusCode::kInvalidArgument);
  Free(data);
  EXPECT_EQ(cache_.Free(data).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache_.Retire(data).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache_.Allocate(0, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache_.statistics().active_bytes, 0);
  EXPECT_EQ(cache_.statistics().free_bytes(), 20 * kMib);
}

TEST_F(BlockCacheTest, ALimitGivesFreeSegmentsBackAndTriesAgain) {
  BlockCache cache(&source_, {.limit_bytes = 50 * kMib});
  std::byte* kept = cache.Allocate(2 * kMib, 0).value();
  ASSERT_TRUE(cache.Free(cache.Allocate(30 * kMib, 1).value()).ok());
  EXPECT_EQ(cache.statistics().reserved_bytes, 50 * kMib);
  ASSERT_TRUE(cache.Allocate(28 * kMib, 2).ok());
  EXPECT_EQ(cache.statistics().reserved_bytes, 48 * kMib);
  EXPECT_EQ(cache.statistics().retries, 1);
  EXPECT_EQ(cache.statistics().ooms, 0);
  ASSERT_TRUE(cache.Free(kept).ok());
}

TEST_F(BlockCacheTest, ARefusalSaysWhatIsHeldAndKeepsWorking) {
  BlockCache cache(&source_, {.limit_bytes = 50 * kMib});
  ASSERT_TRUE(cache.Allocate(24 * kMib, 0).ok());
  std::byte* pending = cache.Allocate(20 * kMib, 1).value();
  ASSERT_TRUE(cache.Retire(pending).ok());
  const absl::Status refused = cache.Allocate(16 * kMib, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("16777216 bytes to stream 0"), HasSubstr("limit of 52428800"),
                    HasSubstr("25165824 are allocated"), HasSubstr("20971520 wait")));
  EXPECT_EQ(cache.statistics().retries, 1);
  EXPECT_EQ(cache.statistics().ooms, 1);
  ASSERT_TRUE(cache.Free(pending).ok());
  EXPECT_TRUE(cache.Allocate(16 * kMib, 0).ok());
}

TEST_F(BlockCacheTest, StreamsFinishBeforeSegmentsGoBack) {
  BlockCache* finishing = nullptr;
  std::byte* pending = nullptr;
  BlockCache cache(&source_, {.limit_bytes = 30 * kMib, .finish_streams = [&] {
                                EXPECT_EQ(source_.sizes.size(), 1u);
                                EXPECT_TRUE(finishing->Free(pending).ok());
                              }});
  finishing = &cache;
  pending = cache.Allocate(20 * kMib, 1).value();
  ASSERT_TRUE(cache.Retire(pending).ok());
  EXPECT_TRUE(cache.Allocate(30 * kMib, 0).ok());
  EXPECT_EQ(source_.sizes.size(), 1u);
}

TEST_F(BlockCacheTest, AnEmptySourceIsAnExhaustionAndOtherFailuresAreNot) {
  source_.left_bytes = 30 * kMib;
  std::byte* first = Allocate(20 * kMib);
  EXPECT_EQ(cache_.Allocate(12 * kMib, 0).status().code(), absl::StatusCode::kResourceExhausted);
  Free(first);
  EXPECT_TRUE(cache_.Allocate(24 * kMib, 1).ok());
  EXPECT_EQ(cache_.statistics().retries, 2);
  EXPECT_EQ(cache_.statistics().ooms, 1);
  source_.failure = absl::InternalError("broken");
  EXPECT_EQ(cache_.Allocate(2 * kMib, 0).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(cache_.statistics().retries, 2);
}

TEST_F(BlockCacheTest, RequestsBeyondAllMemoryAreRefusedWithoutOverflow) {
  for (const int64_t bytes : {int64_t{1} << 60, (int64_t{1} << 60) + 1, INT64_MAX}) {
    source_.left_bytes = 30 * kMib;
    EXPECT_EQ(cache_.Allocate(bytes, 0).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(cache_.statistics().reserved_bytes, 0);
}

TEST_F(BlockCacheTest, AStepsPeakIsThatOfItsOwn) {
  std::byte* data = Allocate(4 * kMib);
  Free(data);
  Allocate(2 * kMib);
  EXPECT_EQ(cache_.statistics().step_peak_bytes, 4 * kMib);
  cache_.BeginStep();
  EXPECT_EQ(cache_.statistics().step_peak_bytes, 2 * kMib);
}

TEST(MappedSegmentsTest, BlocksAreMemoryThatGoesBackToTheSystem) {
  MappedSegments source;
  {
    BlockCache cache(&source);
    std::byte* a = cache.Allocate(3 * kMib, 0).value();
    std::byte* b = cache.Allocate(3 * kMib, 0).value();
    std::memset(a, 1, 3 * kMib);
    std::memset(b, 2, 3 * kMib);
    EXPECT_EQ(a[3 * kMib - 1], std::byte{1});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 512, 0u);
    EXPECT_EQ(source.count(), 1u);
    ASSERT_TRUE(cache.Free(a).ok());
    ASSERT_TRUE(cache.Free(b).ok());
    EXPECT_EQ(cache.ReleaseCached(), 20 * kMib);
    EXPECT_EQ(source.count(), 0u);
    ASSERT_TRUE(cache.Allocate(1, 0).ok());
  }
  EXPECT_EQ(source.count(), 0u);
}

}  // namespace
}  // namespace terrace
