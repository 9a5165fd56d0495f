// SPDX-License-Identifier: Apache-2.0
#include "worker/data/mixture/source_draw.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(SourceDrawTest, ASourceHasItsShareOfAnyStretch) {
  const std::vector<double> weights = {0.7, 2.1, 0.2};
  const SourceDraw draw(weights, 5);
  std::vector<int64_t> seen(3);
  constexpr int64_t kBlock = 16 * 3;
  for (int64_t sample = 0; sample < 20'000; ++sample) {
    ++seen[draw.At(sample).source];
    for (int i = 0; i < 3; ++i) {
      const double share = weights[i] / 3.0 * static_cast<double>(sample + 1);
      ASSERT_LE(std::abs(static_cast<double>(seen[i]) - share), kBlock) << sample;
    }
  }
  EXPECT_NEAR(static_cast<double>(seen[1]), 14'000, 3);
}

// Each entry of a source's list once, nearly in order.
TEST(SourceDrawTest, EachSourceHasAnEndlessListOfItsOwn) {
  const SourceDraw draw({1, 3}, 9);
  std::vector<std::set<int64_t>> entries(2);
  for (int64_t sample = 0; sample < 5000; ++sample) {
    const SourceDraw::Place place = draw.At(sample);
    EXPECT_LE(std::abs(place.index - static_cast<int64_t>(entries[place.source].size())), 32);
    EXPECT_TRUE(entries[place.source].insert(place.index).second) << sample;
  }
  const std::vector<int64_t> counts = draw.Counts(5000);
  EXPECT_EQ(counts[0] + counts[1], 5000);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(counts[i], static_cast<int64_t>(entries[i].size()));
}

TEST(SourceDrawTest, TheOrderIsTheSeeds) {
  const auto order = [](uint64_t key) {
    const SourceDraw draw({1, 1}, key);
    std::vector<int> sources;
    for (int64_t sample = 0; sample < 200; ++sample) sources.push_back(draw.At(sample).source);
    return sources;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(SourceDrawTest, OneSourceIsInARow) {
  const SourceDraw draw({0.5}, 1);
  for (const int64_t sample : {int64_t{0}, int64_t{7}, int64_t{1} << 42}) {
    EXPECT_EQ(draw.At(sample).source, 0);
    EXPECT_EQ(draw.At(sample).index, sample);
  }
}

TEST(SourceDrawTest, ManySourcesAndFarSamplesHold) {
  std::vector<double> weights(1024, 1.0);
  weights[3] = 1e12;
  weights[1000] = 0;
  const SourceDraw draw(weights, 3);
  for (const int64_t sample : {int64_t{0}, int64_t{1} << 20, (int64_t{1} << 43) - 1}) {
    const SourceDraw::Place place = draw.At(sample);
    EXPECT_NE(place.source, 1000);
    EXPECT_GE(place.index, 0);
    EXPECT_LE(place.index, sample + (int64_t{16} << 10));
  }
}

}  // namespace
}  // namespace terrace
