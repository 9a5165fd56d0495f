// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/mapped_range.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kPage = 2 << 20;

// "Rss:", "Size:" of all mappings of that name, in bytes.
int64_t BytesOf(const std::string& figure, const std::string& name) {
  std::ifstream smaps("/proc/self/smaps");
  int64_t kib = 0;
  bool mine = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find("-") < line.find(" ")) mine = line.find("/memfd:" + name) != std::string::npos;
    if (mine && line.rfind(figure, 0) == 0) kib += std::stoll(line.substr(figure.size()));
  }
  return kib << 10;
}
int64_t ResidentBytes(const std::string& name) { return BytesOf("Rss:", name); }

// What stands for the file of that name from now on, in this process.
void PutInPlaceOf(const std::string& name, const char* other) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(entry.path(), none).string();
    if (target.find("/memfd:" + name) == std::string::npos) continue;
    ::dup2(::open(other, O_RDWR), std::stoi(entry.path().filename().string()));
  }
}

// In a death test. AddressSanitizer handles the signal and exits, unless it is told not to.
void WriteUnhandled(std::byte* byte) {
  std::signal(SIGSEGV, SIG_DFL);
  *static_cast<volatile std::byte*>(byte) = std::byte{1};
}

TEST(MappedRangeTest, PagesComeAndGoAndTheRestStaysWhereItIs) {
  auto range = MappedRange::Reserve("terrace-arena-range-1", 100 * kPage);
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(range->data()) % kPage, 0u);
  EXPECT_EQ(ResidentBytes("terrace-arena-range-1"), 0) << "addresses cost nothing";
  ASSERT_TRUE(range->Map(0, 2 * kPage).ok());
  ASSERT_TRUE(range->Map(5 * kPage, kPage).ok());
  EXPECT_EQ(ResidentBytes("terrace-arena-range-1"), 3 * kPage) << "before anybody touches it";
  std::memset(range->data(), 7, 2 * kPage);
  ASSERT_TRUE(range->Map(2 * kPage, 3 * kPage).ok());
  EXPECT_EQ(range->data()[2 * kPage - 1], std::byte{7}) << "growing moves nothing";
  EXPECT_EQ(range->data()[2 * kPage], std::byte{0});
  range->Unmap(kPage, 2 * kPage);
  EXPECT_EQ(ResidentBytes("terrace-arena-range-1"), 4 * kPage);
  EXPECT_EQ(range->data()[kPage - 1], std::byte{7});
  ASSERT_TRUE(range->Map(kPage, kPage).ok());
  EXPECT_EQ(range->data()[kPage], std::byte{0}) << "what went back is gone";
}

TEST(MappedRangeTest, WhatIsNotMappedCannotBeTouched) {
  auto range = MappedRange::Reserve("terrace-arena-range-2", 4 * kPage);
  ASSERT_TRUE(range.ok());
  ASSERT_TRUE(range->Map(kPage, kPage).ok());
  for (const int64_t outside : {int64_t{-1}, int64_t{0}, kPage - 1, 2 * kPage, 4 * kPage}) {
    EXPECT_EXIT(WriteUnhandled(range->data() + outside), testing::KilledBySignal(SIGSEGV), "")
        << outside;
  }
  range->Unmap(kPage, kPage);
  EXPECT_EXIT(WriteUnhandled(range->data() + kPage), testing::KilledBySignal(SIGSEGV), "");
}

TEST(MappedRangeTest, MemoryThatIsNotThereIsRefusedAndNothingStaysMapped) {
  auto range = MappedRange::Reserve("terrace-arena-range-3", int64_t{1} << 40);
  ASSERT_TRUE(range.ok()) << range.status();
  ASSERT_TRUE(range->Map(0, kPage).ok());
  const auto refused = [&] {
    PutInPlaceOf("terrace-arena-range-3", "/dev/null");  // which gives no memory
    const absl::Status status = range->Map(kPage, 4 * kPage);
    const bool right = status.code() == absl::StatusCode::kResourceExhausted &&
                       std::string(status.message()).find("8388608 bytes") != std::string::npos &&
                       BytesOf("Size:", "terrace-arena-range-3") == kPage;
    ::_exit(right ? 0 : 1);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(0), "");
}

TEST(MappedRangeTest, ItGoesBackOnceAlsoAfterItWasMoved) {
  {
    auto first = MappedRange::Reserve("terrace-arena-range-4", 4 * kPage);
    ASSERT_TRUE(first.ok());
    ASSERT_TRUE(first->Map(0, kPage).ok());
    const MappedRange second = *std::move(first);
    EXPECT_EQ(ResidentBytes("terrace-arena-range-4"), kPage);
  }
  EXPECT_EQ(ResidentBytes("terrace-arena-range-4"), 0);
}

}  // namespace
}  // namespace terrace
