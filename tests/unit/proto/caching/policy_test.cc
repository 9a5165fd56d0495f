// SPDX-License-Identifier: Apache-2.0
#include "proto/caching/policy.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

constexpr int64_t kMib = 1 << 20;

TEST(CachingPolicyTest, BlocksAreWhole512Bytes) {
  EXPECT_EQ(CachingPolicy::BlockBytes(1), 512);
  EXPECT_EQ(CachingPolicy::BlockBytes(512), 512);
  EXPECT_EQ(CachingPolicy::BlockBytes(513), 1024);
  EXPECT_EQ(CachingPolicy::BlockBytes(int64_t{1} << 60), int64_t{1} << 60);
}

TEST(CachingPolicyTest, SegmentsFollowThePublishedClasses) {
  EXPECT_EQ(CachingPolicy::SegmentBytes(512), 2 * kMib);
  EXPECT_EQ(CachingPolicy::SegmentBytes(kMib), 2 * kMib);
  EXPECT_EQ(CachingPolicy::SegmentBytes(kMib + 512), 20 * kMib);
  EXPECT_EQ(CachingPolicy::SegmentBytes(10 * kMib - 512), 20 * kMib);
  EXPECT_EQ(CachingPolicy::SegmentBytes(10 * kMib), 10 * kMib);
  EXPECT_EQ(CachingPolicy::SegmentBytes(10 * kMib + 512), 12 * kMib);
  EXPECT_EQ(CachingPolicy::PoolOf(kMib), CachingPool::kSmall);
  EXPECT_EQ(CachingPolicy::PoolOf(kMib + 512), CachingPool::kLarge);
}

TEST(CachingPolicyTest, ARestTooSmallToBeOfUseStaysWithTheBlock) {
  const CachingPolicy policy;
  EXPECT_TRUE(policy.Splits(CachingPool::kSmall, 1024, 512));
  EXPECT_FALSE(policy.Splits(CachingPool::kSmall, 512, 512));
  EXPECT_FALSE(policy.Splits(CachingPool::kLarge, 3 * kMib, 2 * kMib));
  EXPECT_TRUE(policy.Splits(CachingPool::kLarge, 3 * kMib + 512, 2 * kMib));
}

TEST(CachingPolicyTest, WhereSegmentsExpandEveryRestIsOfUse) {
  const CachingPolicy policy = {.expandable = true};
  EXPECT_TRUE(policy.Splits(CachingPool::kLarge, 2 * kMib + 512, 2 * kMib));
  EXPECT_FALSE(policy.Splits(CachingPool::kLarge, 2 * kMib, 2 * kMib));
}

TEST(CachingPolicyTest, BlocksFromTheLimitOnAreNeitherSplitNorGivenToSmallerRequests) {
  const CachingPolicy policy = {.max_split_bytes = 100 * kMib};
  EXPECT_TRUE(policy.MayServe(100 * kMib - 512, 2 * kMib));
  EXPECT_FALSE(policy.MayServe(100 * kMib, 2 * kMib));
  EXPECT_TRUE(policy.MayServe(120 * kMib - 512, 100 * kMib));
  EXPECT_FALSE(policy.MayServe(120 * kMib, 100 * kMib));
  EXPECT_FALSE(policy.Splits(CachingPool::kLarge, 110 * kMib, 100 * kMib));
  EXPECT_TRUE(policy.Splits(CachingPool::kLarge, 90 * kMib, 50 * kMib));
}

}  // namespace
}  // namespace terrace
