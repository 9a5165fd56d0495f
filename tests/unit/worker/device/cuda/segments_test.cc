// Segments of the caching allocator on a device: of fixed sizes and growing page by page.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/memory.h"
#include "proto/caching/cache.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "worker/device/backend.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kContext = 100 * kMib;

class DeviceSegmentsTest : public testing::Test {
 protected:
  // A device with so much memory beside its context.
  void Open(int64_t mib, bool maps_pages = true) {
    simt::ResetDevice({.devices = 1,
                       .memory_bytes = kContext + kMib + mib * kMib,
                       .context_bytes = kContext,
                       .maps_pages = maps_pages});
    auto backend = OpenBackend("cuda", 0);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    source_ = backend_->NewSegments(1);
  }
  static void Fill(std::byte* data, char value, int64_t bytes) {
    const std::vector<char> from(static_cast<size_t>(bytes), value);
    const kernels::Status status = kernels::cuda::CopyNow(data, from.data(), bytes);
    EXPECT_TRUE(status.ok()) << status.message;
  }
  static char At(const std::byte* data) {
    char value = 0;
    EXPECT_TRUE(kernels::cuda::CopyNow(&value, data, 1).ok());
    return value;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SegmentSource> source_;
};

TEST_F(DeviceSegmentsTest, BlocksGrowAndGoBackByPagesWithoutBeingMoved) {
  Open(64);
  {
    BlockCache cache(source_.get(), {.policy = {.expandable = true}});
    std::byte* const a = cache.Allocate(5 * kMib, 0).value();
    Fill(a, 1, 5 * kMib);
    std::byte* const b = cache.Allocate(20 * kMib, 0).value();
    Fill(b, 2, 20 * kMib);
    std::byte* const c = cache.Allocate(5 * kMib, 0).value();
    Fill(c, 3, 5 * kMib);
    EXPECT_EQ(simt::CountsOfDevice().pages, 15);
    ASSERT_TRUE(cache.Free(b).ok());
    EXPECT_EQ(cache.ReleaseCached(), 18 * kMib);
    EXPECT_EQ(simt::CountsOfDevice().pages, 6);
    EXPECT_EQ(At(a + 5 * kMib - 1), 1);
    EXPECT_EQ(At(c), 3);
    EXPECT_EQ(cache.Allocate(20 * kMib, 0).value(), b);
    Fill(b, 4, 20 * kMib);
    EXPECT_EQ(At(a + 5 * kMib - 1), 1);
    EXPECT_EQ(At(c), 3);
    EXPECT_EQ(simt::CountsOfDevice().allocations, 1) << "of the device's own, none of segments";
  }
  EXPECT_EQ(simt::CountsOfDevice().pages, 0);
  EXPECT_EQ(simt::CountsOfDevice().ranges, 0);
}

// What fixed segments refuse fits into pages.
TEST_F(DeviceSegmentsTest, MemoryThatFixedSegmentsCannotJoinServes) {
  Open(64);
  for (const bool expandable : {false, true}) {
    BlockCache cache(source_.get(),
                     {.policy = {.expandable = expandable}, .release_when_full = false});
    for (const int64_t mib : {14, 30}) {
      std::byte* const data = cache.Allocate(mib * kMib, 0).value();
      ASSERT_TRUE(cache.Free(data).ok());
    }
    EXPECT_EQ(cache.Allocate(60 * kMib, 0).ok(), expandable);
  }
}

TEST_F(DeviceSegmentsTest, OutOfMemoryInTheMiddleSaysWhatTheDeviceHasAndTakesNothing) {
  Open(32);
  BlockCache cache(source_.get(), {.policy = {.expandable = true}});
  std::byte* const a = cache.Allocate(20 * kMib, 0).value();
  Fill(a, 7, 20 * kMib);
  const absl::Status refused = cache.Allocate(16 * kMib, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("16.0 MiB of device memory for pages of a segment"),
                    HasSubstr("cuMemCreate: out of memory"), HasSubstr("NVIDIA Fake 1GB")));
  EXPECT_EQ(simt::CountsOfDevice().pages, 10);
  EXPECT_EQ(At(a + 20 * kMib - 1), 7);
  EXPECT_TRUE(cache.Allocate(12 * kMib, 0).ok());
}

TEST_F(DeviceSegmentsTest, ADeviceThatCannotMapPagesNamesTheKeyAndTheWayOut) {
  Open(32, /*maps_pages=*/false);
  BlockCache cache(source_.get(), {.policy = {.expandable = true}});
  const absl::Status status = cache.Allocate(4 * kMib, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("layout.allocator: got expandable"),
                                                   HasSubstr("this device cannot map pages"),
                                                   HasSubstr("use caching or planned")));
}

}  // namespace
}  // namespace terrace
