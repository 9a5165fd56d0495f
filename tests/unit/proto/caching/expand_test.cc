// Segments that grow page by page: what they promise, and random requests against a source that
// knows of every page whether it is mapped.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "proto/caching/cache.h"
#include "worker/memory/caching_segments.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kPage = CachingPolicy::kPageBytes;

// Addresses, and which of their pages are mapped. What the cache may not ask for fails the test.
class CountedPages final : public SegmentSource {
 public:
  absl::StatusOr<std::byte*> Reserve(int64_t) override {
    ADD_FAILURE() << "a segment of fixed size";
    return absl::InternalError("");
  }
  absl::StatusOr<std::byte*> ReserveRange(int64_t bytes) override {
    EXPECT_EQ(bytes % kPage, 0);
    if (no_ranges) return absl::UnimplementedError("no pages here");
    auto* data = reinterpret_cast<std::byte*>(next_);
    next_ += static_cast<uint64_t>(bytes + kPage);
    ranges[data] = bytes;
    return data;
  }
  absl::Status Map(std::byte* data, int64_t bytes) override {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kPage + bytes % kPage, 0u);
    if (bytes > left_bytes) return absl::ResourceExhaustedError("the device is full");
    left_bytes -= bytes;
    ++maps;
    for (int64_t at = 0; at < bytes; at += kPage)
      EXPECT_TRUE(mapped.insert(data + at).second) << "mapped twice";
    return absl::OkStatus();
  }
  void Unmap(std::byte* data, int64_t bytes) override {
    left_bytes += bytes;
    for (int64_t at = 0; at < bytes; at += kPage)
      EXPECT_EQ(mapped.erase(data + at), 1u) << "was not mapped";
  }
  void Release(std::byte* data) override {
    const int64_t bytes = ranges.at(data);
    left_bytes += kPage * static_cast<int64_t>(std::erase_if(mapped, [&](std::byte* page) {
                    return page >= data && page < data + bytes;
                  }));
    ranges.erase(data);
  }
  int64_t mapped_bytes() const { return static_cast<int64_t>(mapped.size()) * kPage; }
  bool IsMapped(const std::byte* data, int64_t bytes) const {
    const auto first = reinterpret_cast<uintptr_t>(data) / kPage;
    const auto last = (reinterpret_cast<uintptr_t>(data) + bytes - 1) / kPage;
    for (auto page = first; page <= last; ++page) {
      if (!mapped.contains(reinterpret_cast<std::byte*>(page * kPage))) return false;
    }
    return true;
  }

  std::map<std::byte*, int64_t> ranges;
  std::set<std::byte*> mapped;
  int64_t left_bytes = int64_t{1} << 60;
  int maps = 0;
  bool no_ranges = false;

 private:
  uint64_t next_ = uint64_t{1} << 44;
};

class ExpandTest : public testing::Test {
 protected:
  ExpandTest() : cache_(&source_, {.policy = {.expandable = true}}) {}

  std::byte* Allocate(int64_t bytes, uint32_t stream = 0) {
    const auto data = cache_.Allocate(bytes, stream);
    EXPECT_TRUE(data.ok()) << data.status();
    return data.value_or(nullptr);
  }
  void Free(std::byte* data) { EXPECT_TRUE(cache_.Free(data).ok()); }
  int64_t reserved() const { return cache_.statistics().reserved_bytes; }

  CountedPages source_;
  BlockCache cache_;
};

TEST_F(ExpandTest, ASegmentGrowsByWholePagesBehindWhatItHas) {
  std::byte* a = Allocate(3 * kMib);
  EXPECT_EQ(reserved(), 4 * kMib);
  std::byte* b = Allocate(30 * kMib);
  EXPECT_EQ(b, a + 3 * kMib) << "the rest of the last page is used";
  EXPECT_EQ(reserved(), 34 * kMib);
  EXPECT_EQ(source_.ranges.size(), 1u);
  EXPECT_EQ(reserved(), source_.mapped_bytes());
}

TEST_F(ExpandTest, StreamsAndPoolsHaveASegmentEach) {
  Allocate(kMib, 0);
  Allocate(3 * kMib, 0);
  Allocate(3 * kMib, 1);
  Allocate(kMib, 0);
  EXPECT_EQ(source_.ranges.size(), 3u);
  EXPECT_EQ(reserved(), 2 * kMib + 4 * kMib + 4 * kMib);
}

// What segments of fixed size cannot do.
TEST_F(ExpandTest, NeighboursServeTogetherAndGrowByWhatIsMissing) {
  CountedSegments numbers;
  BlockCache fixed(&numbers);
  for (BlockCache* cache : {&cache_, &fixed}) {
    for (int64_t mib = 10; mib <= 40; mib += 10) {
      std::byte* const data = cache->Allocate(mib * kMib, 0).value();
      ASSERT_TRUE(cache->Free(data).ok());
    }
  }
  EXPECT_EQ(reserved(), 40 * kMib);
  EXPECT_EQ(fixed.statistics().reserved_bytes, (10 + 20 + 30 + 40) * kMib);
  EXPECT_EQ(cache_.statistics().ScatteredShare(), 0);
  EXPECT_GT(fixed.statistics().ScatteredShare(), 0.5);
}

TEST_F(ExpandTest, FreePagesGoBackFromTheMiddleAndHeldBlocksStay) {
  std::byte* const a = Allocate(5 * kMib);
  std::byte* const b = Allocate(20 * kMib);
  std::byte* const c = Allocate(5 * kMib);
  Free(b);
  EXPECT_EQ(cache_.ReleaseCached(), 18 * kMib) << "b from 5 to 25 MiB has the pages from 6 to 24";
  EXPECT_EQ(reserved(), 12 * kMib);
  EXPECT_EQ(reserved(), source_.mapped_bytes());
  EXPECT_TRUE(source_.IsMapped(a, 5 * kMib));
  EXPECT_TRUE(source_.IsMapped(c, 5 * kMib));
  const auto blocks = cache_.Snapshot()[0].blocks;
  ASSERT_EQ(blocks.size(), 5u);
  EXPECT_EQ(blocks[2].state, CachedBlock::kUnmapped);
  // The hole serves again, with what is left on both its sides.
  EXPECT_EQ(Allocate(20 * kMib), b);
  EXPECT_EQ(reserved(), 30 * kMib);
}

TEST_F(ExpandTest, AHoleIsFilledWhereFewestPagesAreMissing) {
  std::byte *const a = Allocate(2 * kMib), *const b = Allocate(12 * kMib);
  Allocate(2 * kMib);
  Free(b);
  cache_.ReleaseCached();
  Free(a);
  EXPECT_EQ(Allocate(4 * kMib), a) << "its page and one of the hole";
  EXPECT_EQ(reserved(), 6 * kMib);
}

TEST_F(ExpandTest, WithNothingLeftASegmentAndItsAddressesGo) {
  std::byte* const a = Allocate(5 * kMib);
  Free(a);
  EXPECT_EQ(cache_.ReleaseCached(), 6 * kMib);
  EXPECT_EQ(reserved(), 0);
  EXPECT_TRUE(source_.ranges.empty());
  EXPECT_TRUE(cache_.Snapshot().empty());
  Allocate(5 * kMib);
}

TEST_F(ExpandTest, OutOfMemoryInTheMiddleKeepsTheBooks) {
  std::byte *const a = Allocate(4 * kMib), *const b = Allocate(4 * kMib), *const c = Allocate(kMib);
  Free(a);
  cache_.ReleaseCached();
  source_.left_bytes = 4 * kMib;  // the hole can be filled, what lies behind b cannot
  Free(b);
  const absl::Status refused = cache_.Allocate(40 * kMib, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the device is full"));
  EXPECT_EQ(cache_.statistics().retries, 1);
  EXPECT_EQ(reserved(), source_.mapped_bytes());
  EXPECT_TRUE(source_.IsMapped(c, kMib));
  EXPECT_TRUE(cache_.Allocate(8 * kMib, 0).ok()) << "what there is can be had";
  EXPECT_EQ(source_.left_bytes, 0);
}

TEST_F(ExpandTest, TheLimitCountsPagesAndFreeOnesGoBackForIt) {
  BlockCache cache(&source_, {.policy = {.expandable = true}, .limit_bytes = 20 * kMib});
  ASSERT_TRUE(cache.Free(cache.Allocate(14 * kMib, 1).value()).ok());
  ASSERT_TRUE(cache.Allocate(18 * kMib, 2).ok());
  EXPECT_EQ(cache.statistics().reserved_bytes, 18 * kMib);
  EXPECT_EQ(cache.statistics().retries, 1);
  const absl::Status refused = cache.Allocate(4 * kMib, 2).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("would exceed the limit of 20971520"));
}

TEST_F(ExpandTest, ASourceWithoutPagesIsAnErrorOfItsOwn) {
  source_.no_ranges = true;
  const absl::Status status = cache_.Allocate(4 * kMib, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << "no reason to try again";
  EXPECT_EQ(cache_.statistics().ooms, 0);
}

struct Held {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

void ExpectSound(const BlockCache& cache, const CountedPages& source,
                 const std::vector<Held>& held) {
  std::map<const std::byte*, CachedBlock::State> states;
  for (const CachedSegment& segment : cache.Snapshot()) {
    std::byte* at = segment.data;
    CachedBlock::State before = CachedBlock::kAllocated;
    for (const CachedBlock& block : segment.blocks) {
      ASSERT_EQ(block.data, at) << "a gap";
      at += block.bytes;
      states[block.data] = block.state;
      const bool alone = block.state == CachedBlock::kFree || block.state == CachedBlock::kUnmapped;
      ASSERT_FALSE(alone && block.state == before) << "neighbours that did not merge";
      before = block.state;
      if (block.state != CachedBlock::kUnmapped) {
        ASSERT_TRUE(source.IsMapped(block.data, block.bytes));
        continue;
      }
      for (int64_t page = 0; page < block.bytes; page += kPage)
        ASSERT_FALSE(source.mapped.contains(block.data + page));
    }
    ASSERT_EQ(at, segment.data + segment.bytes);
    ASSERT_NE(before, CachedBlock::kUnmapped) << "the end of a segment is memory";
  }
  ASSERT_EQ(cache.statistics().reserved_bytes, source.mapped_bytes());
  for (const Held& one : held) ASSERT_EQ(states.at(one.data), CachedBlock::kAllocated);
}

TEST(ExpandModelTest, RandomRequestsLoseNoByteAndNeverShareOne) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    CountedPages source;
    source.left_bytes = 300 * kMib;
    BlockCache cache(&source, {.policy = {.expandable = true}, .limit_bytes = 400 * kMib});
    std::vector<Held> held;
    for (int i = 0; i < 500; ++i) {
      const uint64_t what = random() % 20;
      if (what < 11 || held.empty()) {
        const int64_t most = random() % 3 == 0 ? 2 * kMib : 40 * kMib;
        const int64_t bytes = 1 + static_cast<int64_t>(random() % most);
        const auto data = cache.Allocate(bytes, static_cast<uint32_t>(random() % 3));
        if (data.ok()) held.push_back({*data, bytes});
      } else if (what == 11) {
        cache.ReleaseCached();
      } else {
        const size_t pick = random() % held.size();
        ASSERT_TRUE(cache.Free(held[pick].data).ok());
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSound(cache, source, held));
    }
    EXPECT_GT(cache.statistics().ooms, 0) << "memory ran out too";
    for (const Held& one : held) ASSERT_TRUE(cache.Free(one.data).ok());
    cache.ReleaseCached();
    ASSERT_EQ(source.mapped_bytes(), 0);
    ASSERT_TRUE(source.ranges.empty());
  }
}

TEST(ExpandOnTheHostTest, BlocksAreMemoryThatGrowsInPlace) {
  MappedSegments source;
  BlockCache cache(&source, {.policy = {.expandable = true}});
  std::byte* const a = cache.Allocate(3 * kMib, 0).value();
  std::memset(a, 5, 3 * kMib);
  std::byte* const b = cache.Allocate(9 * kMib, 0).value();
  std::memset(b, 6, 9 * kMib);
  EXPECT_EQ(a[3 * kMib - 1], std::byte{5});
  ASSERT_TRUE(cache.Free(a).ok());
  ASSERT_EQ(cache.ReleaseCached(), 2 * kMib);
  EXPECT_EQ(b[0], std::byte{6});
  EXPECT_EQ(cache.Allocate(3 * kMib, 0).value(), a);
  a[0] = std::byte{1};
  EXPECT_EQ(source.count(), 1u);
}

}  // namespace
}  // namespace terrace
