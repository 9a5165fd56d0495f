// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/worker/data/token_dataset_fixture.h"
#include "worker/data/permutation.h"
#include "worker/data/token_dataset.h"

namespace terrace {
namespace {

class SamplingTest : public TokenDatasetTest {
 protected:
  static constexpr int64_t kTokens = 1003, kLength = 8, kWindows = kTokens / kLength;

  // Token i is i, so that a row tells where it begins.
  SamplingTest() {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < kTokens; ++i) tokens.push_back(i);
    spec_.add_train(
        PutTokens("first.bin", std::vector<uint16_t>(tokens.begin(), tokens.begin() + 500)));
    spec_.add_train(
        PutTokens("second.bin", std::vector<uint16_t>(tokens.begin() + 500, tokens.end())));
  }
  std::vector<int32_t> Row(const TokenDataset& dataset, int64_t step, int64_t row,
                           int64_t global_batch) {
    std::vector<int32_t> tokens(kLength), targets(kLength);
    dataset.TrainRow(step, row, global_batch, {.tokens = tokens, .targets = targets});
    for (int64_t i = 0; i < kLength; ++i) {
      EXPECT_EQ(tokens[i], (tokens[0] + i) % kTokens);
      EXPECT_EQ(targets[i], (tokens[i] + 1) % kTokens);
    }
    return tokens;
  }
};

TEST_F(SamplingTest, EveryWindowOnceAnEpoch) {
  const auto dataset = Open(2000).value();
  std::vector<int32_t> offsets;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::set<int32_t> starts;
    for (int64_t i = 0; i < kWindows; ++i) {
      starts.insert(Row(*dataset, epoch * kWindows + i, 0, 1)[0]);
    }
    EXPECT_EQ(static_cast<int64_t>(starts.size()), kWindows);
    const int32_t offset = *starts.begin() % kLength;
    EXPECT_LT(*starts.begin(), kLength);
    for (const int32_t start : starts) {
      EXPECT_EQ(start % kLength, offset) << "windows do not overlap";
    }
    offsets.push_back(offset);
  }
  EXPECT_GT(std::set<int32_t>(offsets.begin(), offsets.end()).size(), 1u)
      << "each epoch cuts elsewhere";
}

TEST_F(SamplingTest, TheOrderIsNotTheTexts) {
  const auto dataset = Open(2000).value();
  int ascending = 0;
  int32_t last = -1;
  for (int64_t i = 0; i < kWindows; ++i) {
    const int32_t start = Row(*dataset, i, 0, 1)[0];
    ascending += start > last;
    last = start;
  }
  EXPECT_NEAR(ascending, kWindows / 2, kWindows / 4);
}

TEST_F(SamplingTest, AnySplitOfTheBatchSeesTheSameRows) {
  const auto dataset = Open(2000).value();
  const auto again = Open(2000).value();  // a resumed process
  for (int64_t step = 30; step < 40; ++step) {
    for (int64_t row = 0; row < 12; ++row) {
      const std::vector<int32_t> expected = Row(*dataset, step, row, 12);
      EXPECT_EQ(Row(*again, step, row, 12), expected);
      EXPECT_EQ(Row(*dataset, step * 12 + row, 0, 1), expected)
          << "the stream of rows does not depend on the batch";
    }
  }
}

TEST_F(SamplingTest, SeedsDiffer) {
  const auto one = Open(2000, 1).value();
  const auto two = Open(2000, 2).value();
  int equal = 0;
  for (int64_t i = 0; i < 50; ++i) equal += Row(*one, i, 0, 1) == Row(*two, i, 0, 1);
  EXPECT_LT(equal, 10);
}

TEST_F(SamplingTest, TheHeldOutTailIsNeverTrainedOn) {
  spec_.set_validation_fraction(0.1);
  const auto dataset = Open(2000).value();
  EXPECT_EQ(dataset->tokens(Split::kTrain), 903);
  EXPECT_EQ(dataset->tokens(Split::kValidation), 100);
  std::vector<int32_t> tokens(kLength), targets(kLength);
  for (int64_t i = 0; i < 500; ++i) {
    dataset->TrainRow(i, 0, 1, {.tokens = tokens, .targets = targets});
    for (const int32_t target : targets) ASSERT_LT(target, 903);
  }
  dataset->ValidationRow(0, {.tokens = tokens, .targets = targets});
  EXPECT_EQ(tokens[0], 903);
  dataset->ValidationRow(11, {.tokens = tokens, .targets = targets});
  EXPECT_EQ(targets[7], 903 + 96);
  dataset->ValidationRow(12, {.tokens = tokens, .targets = targets});
  EXPECT_EQ(tokens[0], 903) << "wraps around";
}

TEST(PermutationTest, VisitsEveryValueOnce) {
  for (const uint64_t size : {1, 2, 3, 5, 16, 17, 1000, 4097}) {
    const Permutation permutation(size, size * 77);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) {
      ASSERT_LT(permutation(i), size);
      seen.insert(permutation(i));
    }
    EXPECT_EQ(seen.size(), size);
  }
}

}  // namespace
}  // namespace terrace
