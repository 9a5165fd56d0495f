// SPDX-License-Identifier: Apache-2.0
#include "worker/data/bucket_draw.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "gmock/gmock.h"

namespace terrace {
namespace {

TEST(BucketDrawTest, ABatchIsAPureFunctionOfTheStep) {
  const BucketDraw one({100, 40, 7}, 5), again({100, 40, 7}, 5), other({100, 40, 7}, 6);
  int different = 0;
  for (int64_t step = 500; step > 0; --step) {
    const DrawnBatch batch = one.Draw(step, 8);
    EXPECT_EQ(again.Draw(step, 8).bucket, batch.bucket);
    EXPECT_EQ(again.Draw(step, 8).first, batch.first);
    different += other.Draw(step, 8).bucket != batch.bucket;
  }
  EXPECT_GT(different, 50) << "another seed, another order";
}

TEST(BucketDrawTest, EveryBatchOfEveryBucketComesOnce) {
  const std::vector<int64_t> sizes = {100, 40, 7, 0};
  const BucketDraw draw(sizes, 5);
  constexpr int64_t kBatch = 8, kEpochs = 16;  // 16 epochs are whole batches of every bucket
  std::map<int, std::set<int64_t>> firsts;
  int64_t steps = 0;
  for (const int64_t size : sizes) steps += size * kEpochs / kBatch;
  for (int64_t step = 0; step < steps; ++step) {
    const DrawnBatch batch = draw.Draw(step, kBatch);
    EXPECT_EQ(batch.first % kBatch, 0);
    EXPECT_TRUE(firsts[batch.bucket].insert(batch.first).second) << "step " << step;
  }
  for (int bucket = 0; bucket < 4; ++bucket) {
    const int64_t batches = sizes[bucket] * kEpochs / kBatch;
    EXPECT_EQ(static_cast<int64_t>(firsts[bucket].size()), batches) << bucket;
    if (batches == 0) continue;
    EXPECT_EQ(*firsts[bucket].rbegin(), (batches - 1) * kBatch) << bucket;
  }
}

TEST(BucketDrawTest, EverySampleComesOnceAPassInAnotherOrderEachTime) {
  const BucketDraw draw({100, 40}, 5);
  std::vector<std::vector<int64_t>> passes;
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < 40; ++i) seen.push_back(draw.Sample(1, pass * 40 + i));
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 40u);
    EXPECT_LT(*std::max_element(seen.begin(), seen.end()), 40);
    passes.push_back(seen);
  }
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_NE(passes[1], passes[2]);
}

TEST(BucketDrawTest, TheShareOfABucketIsThatOfItsSamplesAndSpreadsOverTheEpoch) {
  const BucketDraw draw({600, 300, 100}, 9);
  std::vector<int> early(3), all(3);
  for (int64_t step = 0; step < 100; ++step) {
    const int bucket = draw.Draw(step, 10).bucket;
    ++all[bucket];
    if (step < 50) ++early[bucket];
  }
  EXPECT_THAT(all, testing::ElementsAre(60, 30, 10));
  EXPECT_NEAR(early[0], 30, 12);
  EXPECT_NEAR(early[1], 15, 10);
}

TEST(BucketDrawTest, ABucketSmallerThanABatchWaitsForItsTurn) {
  const BucketDraw draw({30, 2}, 9);
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < 320; ++step) {
    if (draw.Draw(step, 10).bucket == 1) steps.push_back(step);
  }
  EXPECT_EQ(steps.size(), 20u) << "2 of 32 samples";
}

TEST(BucketDrawTest, WholeEpochsDrewTheFirstBatchesOfEachBucket) {
  const BucketDraw draw({33, 12, 5}, 1);
  std::vector<std::set<int64_t>> drawn(3);  // by bucket, the first samples of batches
  int64_t epochs = 0;
  for (int64_t step = 0; step < 200; ++step) {
    const WholeEpochs whole = draw.WholeEpochsBefore(step, 7);
    ASSERT_LE(whole.steps, step);
    if (whole.steps == step) {
      ++epochs;
      for (int bucket = 0; bucket < 3; ++bucket) {
        EXPECT_EQ(static_cast<int64_t>(drawn[bucket].size()), whole.batches[bucket]);
        if (drawn[bucket].empty()) continue;
        EXPECT_EQ(*drawn[bucket].rbegin(), (whole.batches[bucket] - 1) * 7) << "none left out";
      }
    }
    const DrawnBatch batch = draw.Draw(step, 7);
    drawn[batch.bucket].insert(batch.first);
  }
  EXPECT_GT(epochs, 20);
}

}  // namespace
}  // namespace terrace
