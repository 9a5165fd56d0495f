// Pages of a device under addresses that stay, on the fake driver.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/memory.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"

namespace terrace::kernels::cuda {
namespace {

using testing::HasSubstr;

constexpr int64_t kContext = 100 << 20;

class PagesTest : public testing::Test {
 protected:
  // Device 0 with so many pages.
  static void Reset(int64_t pages) {
    simt::ResetDevice(
        {.devices = 1, .memory_bytes = kContext + pages * kPageBytes, .context_bytes = kContext});
  }
  ~PagesTest() override {
    range_.reset();
    EXPECT_EQ(simt::CountsOfDevice().pages, 0);
    EXPECT_EQ(simt::CountsOfDevice().ranges, 0);
    EXPECT_EQ(UsedBytes(), kContext) << "all memory is given back";
  }
  void Reserve(int64_t pages) {
    const Status status = PagedRange::Reserve(pages * kPageBytes, &range_);
    ASSERT_TRUE(status.ok()) << status.message;
  }
  static int64_t UsedBytes() {
    int64_t free_bytes = 0, total_bytes = 0;
    EXPECT_TRUE(FreeBytes(&free_bytes, &total_bytes).ok());
    return total_bytes - free_bytes;
  }
  Status Map(int64_t offset, int64_t bytes) { return range_->Map(offset, bytes, &exhausted_); }
  Status Write(int64_t offset, char value, int64_t bytes) {
    const std::vector<char> data(static_cast<size_t>(bytes), value);
    return CopyNow(range_->data() + offset, data.data(), bytes);
  }
  char Read(int64_t offset) {
    char value = 0;
    EXPECT_TRUE(CopyNow(&value, range_->data() + offset, 1).ok());
    return value;
  }

  std::unique_ptr<PagedRange> range_;
  bool exhausted_ = false;
};

TEST_F(PagesTest, ARangeGrowsWithoutMovingWhatLiesInIt) {
  Reset(8);
  Reserve(1000);
  EXPECT_EQ(UsedBytes(), kContext) << "addresses cost no memory";
  ASSERT_TRUE(Map(0, kPageBytes).ok());
  EXPECT_EQ(UsedBytes(), kContext + kPageBytes);
  ASSERT_TRUE(Write(0, 7, kPageBytes).ok());
  ASSERT_TRUE(Map(kPageBytes, 3 * kPageBytes).ok());
  EXPECT_EQ(Read(kPageBytes - 1), 7);
  ASSERT_TRUE(Write(kPageBytes / 2, 8, 2 * kPageBytes).ok()) << "pages are one piece of memory";
  EXPECT_EQ(Read(2 * kPageBytes), 8);
  EXPECT_EQ(simt::CountsOfDevice().pages, 4);
}

TEST_F(PagesTest, AnyPageGoesBackAndComesAgain) {
  Reset(8);
  Reserve(8);
  ASSERT_TRUE(Map(0, 8 * kPageBytes).ok());
  ASSERT_TRUE(Write(0, 1, 8 * kPageBytes).ok());
  ASSERT_TRUE(range_->Unmap(2 * kPageBytes, 3 * kPageBytes).ok());
  EXPECT_EQ(UsedBytes(), kContext + 5 * kPageBytes);
  EXPECT_EQ(Read(2 * kPageBytes - 1), 1);
  EXPECT_EQ(Read(5 * kPageBytes), 1);
  ASSERT_TRUE(Map(3 * kPageBytes, kPageBytes).ok());
  EXPECT_NE(Read(3 * kPageBytes), 1) << "what went back is gone";
}

TEST_F(PagesTest, OutOfMemoryInTheMiddleMapsNothingAndLeavesTheRest) {
  Reset(8);
  Reserve(100);
  ASSERT_TRUE(Map(0, 5 * kPageBytes).ok());
  ASSERT_TRUE(Write(0, 3, 5 * kPageBytes).ok());
  const Status status = Map(5 * kPageBytes, 4 * kPageBytes);
  EXPECT_THAT(status.message, HasSubstr("cuMemCreate: out of memory"));
  EXPECT_TRUE(exhausted_);
  EXPECT_EQ(UsedBytes(), kContext + 5 * kPageBytes);
  EXPECT_EQ(Read(5 * kPageBytes - 1), 3);
  EXPECT_TRUE(Map(5 * kPageBytes, 3 * kPageBytes).ok()) << "what there is can be had";
  EXPECT_FALSE(exhausted_);
}

TEST_F(PagesTest, WhatIsNoLackOfMemoryIsNotCalledOne) {
  Reset(8);
  Reserve(4);
  EXPECT_FALSE(Map(3 * kPageBytes, 2 * kPageBytes).ok()) << "the range ends between them";
  EXPECT_FALSE(exhausted_);
  EXPECT_EQ(UsedBytes(), kContext);
}

TEST_F(PagesTest, APageThatTheDriverDoesNotGiveUpIsSaidAndStays) {
  simt::ResetDevice({.devices = 1,
                     .memory_bytes = kContext + 4 * kPageBytes,
                     .context_bytes = kContext,
                     .failing_unmap = 2});
  Reserve(4);
  ASSERT_TRUE(Map(0, 4 * kPageBytes).ok());
  EXPECT_THAT(range_->Unmap(0, 3 * kPageBytes).message, HasSubstr("cuMemUnmap: invalid argument"));
  EXPECT_EQ(UsedBytes(), kContext + 2 * kPageBytes) << "the second and the last stay";
  ASSERT_TRUE(Write(kPageBytes, 5, kPageBytes).ok());
  ASSERT_TRUE(Map(0, 3 * kPageBytes).ok()) << "it is used as it is";
  EXPECT_EQ(UsedBytes(), kContext + 4 * kPageBytes);
  EXPECT_EQ(Read(kPageBytes), 5);
  EXPECT_TRUE(range_->Unmap(0, 3 * kPageBytes).ok()) << "it is still known";
}

TEST_F(PagesTest, APageThatStaysWhenMappingFailsIsUsedByTheNextTry) {
  simt::ResetDevice({.devices = 1,
                     .memory_bytes = kContext + 4 * kPageBytes,
                     .context_bytes = kContext,
                     .failing_unmap = 2});
  Reserve(8);
  EXPECT_THAT(Map(0, 6 * kPageBytes).message, HasSubstr("cuMemCreate: out of memory"));
  EXPECT_TRUE(exhausted_);
  EXPECT_EQ(UsedBytes(), kContext + kPageBytes) << "the second stays";
  EXPECT_TRUE(Map(0, 4 * kPageBytes).ok());
  EXPECT_TRUE(Write(0, 1, 4 * kPageBytes).ok());
  EXPECT_EQ(simt::CountsOfDevice().pages, 4);
}

// Pages that were there before stay as they are.
TEST_F(PagesTest, AFailureTakesBackOnlyWhatItMapped) {
  simt::ResetDevice({.devices = 1,
                     .memory_bytes = kContext + 4 * kPageBytes,
                     .context_bytes = kContext,
                     .failing_unmap = 1});
  Reserve(8);
  ASSERT_TRUE(Map(0, 2 * kPageBytes).ok());
  EXPECT_FALSE(range_->Unmap(0, 2 * kPageBytes).ok());
  ASSERT_TRUE(Write(0, 9, kPageBytes).ok()) << "the first stays";
  EXPECT_FALSE(Map(0, 6 * kPageBytes).ok());
  EXPECT_TRUE(exhausted_);
  EXPECT_EQ(UsedBytes(), kContext + kPageBytes);
  EXPECT_EQ(Read(0), 9);
}

// cuMemUnmap waits for nothing.
TEST_F(PagesTest, WhatIsQueuedOnPagesIsDoneBeforeTheyGo) {
  Reset(2);
  Reserve(2);
  ASSERT_TRUE(Map(0, 2 * kPageBytes).ok());
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(range_->data(), 1, 2 * kPageBytes, stream), cudaSuccess);
  ASSERT_TRUE(range_->Unmap(0, kPageBytes).ok());
  EXPECT_EQ(Read(kPageBytes), 1);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(PagesTest, ADeviceThatCannotIsASentence) {
  simt::ResetDevice({.context_bytes = kContext, .maps_pages = false});
  EXPECT_EQ(PagedRange::Reserve(kPageBytes, &range_).message, "cuda: this device cannot map pages");
  simt::ResetDevice({.context_bytes = kContext, .page_bytes = 32 << 20});
  EXPECT_THAT(PagedRange::Reserve(kPageBytes, &range_).message,
              HasSubstr("maps pages of 33554432 bytes, not of 2097152"));
}

}  // namespace
}  // namespace terrace::kernels::cuda
