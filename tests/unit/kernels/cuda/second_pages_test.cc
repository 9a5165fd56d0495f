// Pages of a device at second addresses, on the fake driver.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/second_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/pages.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"

namespace terrace::kernels::cuda {
namespace {

using testing::HasSubstr;

constexpr int64_t kContext = 100 << 20;

class SecondPagesTest : public testing::Test {
 protected:
  static void Reset(int64_t pages) {
    simt::ResetDevice(
        {.devices = 1, .memory_bytes = kContext + pages * kPageBytes, .context_bytes = kContext});
  }
  ~SecondPagesTest() override {
    pages_.reset();
    EXPECT_EQ(simt::CountsOfDevice().pages, 0);
    EXPECT_EQ(simt::CountsOfDevice().ranges, 0);
    EXPECT_EQ(UsedBytes(), kContext) << "all memory is given back";
  }
  // In pages: so many, then (first, count) at second addresses.
  Status Reserve(int64_t pages, const std::vector<std::pair<int64_t, int64_t>>& runs) {
    std::vector<SecondPages::Run> bytes;
    for (const auto& [first, count] : runs)
      bytes.push_back({.offset = first * kPageBytes, .bytes = count * kPageBytes});
    return SecondPages::Reserve(pages * kPageBytes, bytes, &pages_, &exhausted_);
  }
  static int64_t UsedBytes() {
    int64_t free_bytes = 0, total_bytes = 0;
    EXPECT_TRUE(FreeBytes(&free_bytes, &total_bytes).ok());
    return total_bytes - free_bytes;
  }
  void Write(int64_t page, const std::vector<char>& values) {
    std::vector<char> data;
    for (const char value : values) data.insert(data.end(), kPageBytes, value);
    const Status status =
        CopyNow(pages_->data() + page * kPageBytes, data.data(), static_cast<int64_t>(data.size()));
    EXPECT_TRUE(status.ok()) << status.message;
  }
  // The first and the last byte of a page are the same.
  char Read(int64_t page) {
    char first = 0, last = 0;
    EXPECT_TRUE(CopyNow(&first, pages_->data() + page * kPageBytes, 1).ok());
    EXPECT_TRUE(CopyNow(&last, pages_->data() + (page + 1) * kPageBytes - 1, 1).ok());
    EXPECT_EQ(first, last);
    return first;
  }

  std::unique_ptr<SecondPages> pages_;
  bool exhausted_ = false;
};

TEST_F(SecondPagesTest, WhatIsWrittenAtOneAddressIsReadAtTheOther) {
  Reset(8);
  // Pages 8, 9, 10 are 5, 6, 1.
  ASSERT_TRUE(Reserve(8, {{5, 2}, {1, 1}}).ok());
  EXPECT_EQ(UsedBytes(), kContext + 8 * kPageBytes) << "second addresses cost no memory";
  Write(0, {10, 11, 12, 13, 14, 15, 16, 17});
  EXPECT_EQ(Read(8), 15);
  EXPECT_EQ(Read(9), 16);
  EXPECT_EQ(Read(10), 11);
  Write(8, {1, 2, 3});
  EXPECT_EQ(Read(5), 1);
  EXPECT_EQ(Read(6), 2);
  EXPECT_EQ(Read(1), 3);
  EXPECT_EQ(Read(0), 10);
  EXPECT_EQ(Read(2), 12);
  EXPECT_EQ(Read(7), 17);
}

TEST_F(SecondPagesTest, RunsMayOverlapAndComeInAnyOrder) {
  Reset(6);
  // 6, 7, 8 are 3, 4, 5; 9, 10 are 2, 3; 11 is 3.
  ASSERT_TRUE(Reserve(6, {{3, 3}, {2, 2}, {3, 1}}).ok());
  Write(0, {20, 21, 22, 23, 24, 25});
  const std::vector<int64_t> pages = {3, 4, 5, 2, 3, 3};
  for (size_t i = 0; i < pages.size(); ++i)
    EXPECT_EQ(Read(6 + static_cast<int64_t>(i)), 20 + pages[i]) << i;
  Write(11, {9});
  EXPECT_EQ(Read(6), 9);
  EXPECT_EQ(Read(10), 9);
}

TEST_F(SecondPagesTest, WhatIsQueuedOnPagesIsDoneBeforeTheyGo) {
  Reset(2);
  ASSERT_TRUE(Reserve(2, {{1, 1}}).ok());
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(pages_->data() + 2 * kPageBytes, 1, kPageBytes, stream), cudaSuccess);
  pages_.reset();
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(SecondPagesTest, TooLittleMemoryIsSaidAndLeavesNothing) {
  Reset(4);
  const Status status = Reserve(5, {{1, 1}});
  EXPECT_THAT(status.message, HasSubstr("cuMemCreate: out of memory"));
  EXPECT_TRUE(exhausted_);
}

TEST_F(SecondPagesTest, WhatPeersMapIsOneAllocationThatCanBeShared) {
  Reset(8);
  const int64_t bytes = 5 * kPageBytes - 100;
  ASSERT_TRUE(SecondPages::ReserveShared(bytes, &pages_, &exhausted_).ok());
  EXPECT_EQ(simt::CountsOfDevice().shared_allocations, 1);
  EXPECT_EQ(UsedBytes(), kContext + 6 * kPageBytes) << "whole units of what is recommended";
  Write(0, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Read(4), 5);
}

TEST_F(SecondPagesTest, ADeviceThatSharesNothingIsASentence) {
  simt::ResetDevice({.context_bytes = kContext, .shares_memory = false});
  EXPECT_EQ(SecondPages::ReserveShared(100, &pages_, &exhausted_).message,
            "cuda: this device cannot share memory with other processes");
  Reset(1);
  EXPECT_THAT(SecondPages::ReserveShared(kPageBytes, &pages_, &exhausted_).message,
              HasSubstr("cuMemCreate: out of memory"));
  EXPECT_TRUE(exhausted_);
}

TEST_F(SecondPagesTest, ADeviceThatCannotIsASentence) {
  simt::ResetDevice({.context_bytes = kContext, .maps_pages = false});
  EXPECT_EQ(Reserve(2, {{0, 1}}).message, "cuda: this device cannot map pages");
  EXPECT_FALSE(exhausted_);
}

}  // namespace
}  // namespace terrace::kernels::cuda
