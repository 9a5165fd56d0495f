// Random sequences of requests, compared block for block with the slow obvious way: plain lists,
// searched from the front each time.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "proto/caching/cache.h"
#include "tests/unit/proto/caching/fixture.h"

namespace terrace {
namespace {

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kLimit = 400 * kMib;

struct NaiveBlock {
  int64_t bytes = 0;
  int held = -1;  // whose it is; -1: free
};
struct NaiveSegment {
  uint32_t stream = 0;
  bool small = false;
  std::vector<NaiveBlock> blocks;
  int64_t Bytes() const {
    int64_t bytes = 0;
    for (const NaiveBlock& block : blocks) bytes += block.bytes;
    return bytes;
  }
};

class NaiveCache {
 public:
  // False: refused.
  bool Allocate(int64_t requested, uint32_t stream, int holder) {
    const int64_t bytes = (requested + 511) / 512 * 512;
    if (Place(bytes, stream, holder)) return true;
    std::erase_if(segments, [](const NaiveSegment& segment) {
      return segment.blocks.size() == 1 && segment.blocks[0].held < 0;
    });
    return Place(bytes, stream, holder);
  }
  void Free(int holder) {
    for (NaiveSegment& segment : segments) {
      for (NaiveBlock& block : segment.blocks) {
        if (block.held == holder) block.held = -1;
      }
      for (size_t i = 1; i < segment.blocks.size();) {
        if (segment.blocks[i - 1].held < 0 && segment.blocks[i].held < 0) {
          segment.blocks[i - 1].bytes += segment.blocks[i].bytes;
          segment.blocks.erase(segment.blocks.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
    }
  }

  std::vector<NaiveSegment> segments;

 private:
  bool Place(int64_t bytes, uint32_t stream, int holder) {
    const bool small = bytes <= kMib;
    NaiveSegment* where = nullptr;
    size_t best = 0;
    for (NaiveSegment& segment : segments) {
      if (segment.stream != stream || segment.small != small) continue;
      for (size_t i = 0; i < segment.blocks.size(); ++i) {
        const NaiveBlock& block = segment.blocks[i];
        if (block.held >= 0 || block.bytes < bytes) continue;
        if (where != nullptr && where->blocks[best].bytes <= block.bytes) continue;
        where = &segment;
        best = i;
      }
    }
    if (where == nullptr) {
      int64_t reserve = (bytes + 2 * kMib - 1) / (2 * kMib) * (2 * kMib);
      if (small) reserve = 2 * kMib;
      if (!small && bytes < 10 * kMib) reserve = 20 * kMib;
      int64_t reserved = 0;
      for (const NaiveSegment& segment : segments) reserved += segment.Bytes();
      if (reserved + reserve > kLimit) return false;
      segments.push_back({.stream = stream, .small = small, .blocks = {{.bytes = reserve}}});
      where = &segments.back();
      best = 0;
    }
    const int64_t rest = where->blocks[best].bytes - bytes;
    where->blocks[best].held = holder;
    if (small ? rest > 0 : rest > kMib) {
      where->blocks[best].bytes = bytes;
      where->blocks.insert(where->blocks.begin() + static_cast<std::ptrdiff_t>(best) + 1,
                           {.bytes = rest});
    }
    return true;
  }
};

struct Held {
  int holder = 0;
  std::byte* data = nullptr;
  int64_t requested = 0;
  bool retired = false;
};

// Block for block the same, hence: no overlap, no byte lost, neighbours merged.
void ExpectSame(const BlockCache& cache, const NaiveCache& naive, const std::vector<Held>& held) {
  const std::vector<CachedSegment> segments = cache.Snapshot();
  ASSERT_EQ(segments.size(), naive.segments.size());
  int64_t reserved = 0, allocated = 0, active = 0, requested = 0, largest = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const CachedSegment& segment = segments[i];
    const NaiveSegment& expected = naive.segments[i];
    ASSERT_EQ(segment.stream, expected.stream);
    ASSERT_EQ(segment.bytes, expected.Bytes());
    ASSERT_EQ(segment.blocks.size(), expected.blocks.size());
    reserved += segment.bytes;
    std::byte* at = segment.data;
    for (size_t j = 0; j < segment.blocks.size(); ++j) {
      const CachedBlock& block = segment.blocks[j];
      ASSERT_EQ(block.data, at);
      ASSERT_EQ(block.bytes, expected.blocks[j].bytes);
      at += block.bytes;
      const int holder = expected.blocks[j].held;
      ASSERT_EQ(block.state == CachedBlock::kFree, holder < 0);
      if (holder < 0) {
        largest = std::max(largest, block.bytes);
        continue;
      }
      const auto owner =
          std::find_if(held.begin(), held.end(), [&](const Held& h) { return h.holder == holder; });
      ASSERT_NE(owner, held.end());
      ASSERT_EQ(owner->data, block.data);
      ASSERT_GE(block.bytes, owner->requested);
      active += block.bytes;
      if (owner->retired) continue;
      allocated += block.bytes;
      requested += owner->requested;
    }
  }
  const CachingStatistics statistics = cache.statistics();
  ASSERT_EQ(statistics.reserved_bytes, reserved);
  ASSERT_EQ(statistics.allocated_bytes, allocated);
  ASSERT_EQ(statistics.active_bytes, active);
  ASSERT_EQ(statistics.requested_bytes, requested);
  ASSERT_EQ(statistics.largest_free_block_bytes, largest);
}

int64_t RandomSize(std::mt19937_64& random) {
  // Few sizes and many, small and large, so that exact fits, splits and refusals all occur.
  switch (random() % 4) {
    case 0:
      return 1 + static_cast<int64_t>(random() % (2 * kMib));
    case 1:
      return 1 + static_cast<int64_t>(random() % 4096);
    case 2:
      return (1 + static_cast<int64_t>(random() % 12)) * kMib;
    default:
      return 1 + static_cast<int64_t>(random() % (40 * kMib));
  }
}

struct Totals {
  int64_t refused = 0;
  int64_t retries = 0;
};

void RunAgainstTheModel(uint64_t seed, Totals* totals) {
  std::mt19937_64 random(seed);
  NumberedSegments source;
  BlockCache cache(&source, {.limit_bytes = kLimit});
  NaiveCache naive;
  std::vector<Held> held;
  for (int i = 0; i < 600; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", request " + std::to_string(i));
    const uint64_t what = random() % 10;
    const size_t pick = held.empty() ? 0 : random() % held.size();
    if (what < 5 || held.empty()) {
      const int64_t bytes = RandomSize(random);
      const uint32_t stream = static_cast<uint32_t>(random() % 3);
      const auto data = cache.Allocate(bytes, stream);
      ASSERT_EQ(data.ok(), naive.Allocate(bytes, stream, i)) << data.status();
      if (data.ok()) held.push_back({.holder = i, .data = *data, .requested = bytes});
    } else if (what < 6 && !held[pick].retired) {
      ASSERT_TRUE(cache.Retire(held[pick].data).ok());
      held[pick].retired = true;
    } else {
      ASSERT_TRUE(cache.Free(held[pick].data).ok());
      naive.Free(held[pick].holder);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSame(cache, naive, held));
  }
  totals->refused += cache.statistics().ooms;
  totals->retries += cache.statistics().retries;
  for (const Held& h : held) ASSERT_TRUE(cache.Free(h.data).ok());
  for (const CachedSegment& segment : cache.Snapshot()) ASSERT_EQ(segment.blocks.size(), 1u);
  const int64_t reserved = cache.statistics().reserved_bytes;
  ASSERT_EQ(cache.ReleaseCached(), reserved);
  ASSERT_TRUE(source.sizes.empty());
}

TEST(CachingModelTest, EveryBlockLiesWhereTheObviousWayPutsIt) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RunAgainstTheModel(seed, &totals));
  }
  EXPECT_GT(totals.refused, 100);
  EXPECT_GT(totals.retries, totals.refused);  // some retries helped
}

// Stream, segment and offset of each block, for two sources with different addresses.
TEST(CachingModelTest, BlocksDoNotDependOnAddresses) {
  NumberedSegments low, high;
  high.downwards = false;
  BlockCache first(&low), second(&high);
  std::mt19937_64 random(7);
  std::vector<std::pair<std::byte*, std::byte*>> held;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 || held.empty()) {
      const int64_t bytes = RandomSize(random);
      const uint32_t stream = static_cast<uint32_t>(random() % 2);
      held.emplace_back(first.Allocate(bytes, stream).value(),
                        second.Allocate(bytes, stream).value());
    } else {
      const size_t pick = random() % held.size();
      ASSERT_TRUE(first.Free(held[pick].first).ok());
      ASSERT_TRUE(second.Free(held[pick].second).ok());
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
    }
  }
  const auto a = first.Snapshot(), b = second.Snapshot();
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GT(a.size(), 10u);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].blocks.size(), b[i].blocks.size()) << i;
    for (size_t j = 0; j < a[i].blocks.size(); ++j) {
      EXPECT_EQ(a[i].blocks[j].data - a[i].data, b[i].blocks[j].data - b[i].data);
      EXPECT_EQ(a[i].blocks[j].state, b[i].blocks[j].state);
    }
  }
}

}  // namespace
}  // namespace terrace
