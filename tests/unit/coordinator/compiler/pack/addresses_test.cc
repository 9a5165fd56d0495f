// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/addresses.h"

#include <gtest/gtest.h>

#include <vector>

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kMany = 1000;

TEST(PackAddressesTest, TheTightestHoleServesAndOfEqualsTheLowest) {
  const PackAddresses addresses(kPage, 10 * kPage);
  const std::vector<ByteRange> holes = {{0, 3000}, {4000, 5000}, {6000, 7000}, {8000, 8100}};
  EXPECT_EQ(addresses.Find(holes, 900), 4000);
  EXPECT_EQ(addresses.Find(holes, 50), 8000);
  EXPECT_EQ(addresses.Find(holes, 3001), std::nullopt);
}

TEST(PackAddressesTest, PagesOfSeveralHolesMakeOnePieceOfAddresses) {
  PackAddresses addresses(kPage, 10 * kPage);
  const std::vector<ByteRange> holes = {{0, 2 * kPage}, {4 * kPage, 8 * kPage}};
  EXPECT_EQ(addresses.Add(holes, 5 * kPage, kMany, kMany), 10 * kPage);
  std::vector<ByteRange> memory;
  addresses.AppendMemory(10 * kPage, 5 * kPage, &memory);
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0].begin, 4 * kPage);
  EXPECT_EQ(memory[0].end, 8 * kPage);
  EXPECT_EQ(memory[1].begin, 0);
  EXPECT_EQ(memory[1].end, kPage);
  EXPECT_EQ(addresses.alias_pages(), 5);
  EXPECT_EQ(addresses.Add(holes, 7 * kPage, kMany, kMany), std::nullopt);
}

TEST(PackAddressesTest, ThereAreNoMoreRunsAndPagesThanAllowed) {
  PackAddresses addresses(kPage, 10 * kPage);
  const std::vector<ByteRange> holes = {{0, 2 * kPage}, {4 * kPage, 8 * kPage}};
  EXPECT_EQ(addresses.Add(holes, 5 * kPage, 1, kMany), std::nullopt);
  EXPECT_EQ(addresses.Add(holes, 5 * kPage, kMany, 4), std::nullopt);
  EXPECT_EQ(addresses.Add(holes, 5 * kPage, 2, 5), 10 * kPage);
}

// The pages of what died serve again at the addresses that they have.
TEST(PackAddressesTest, AddressesServeAgain) {
  PackAddresses addresses(kPage, 10 * kPage);
  const std::vector<ByteRange> holes = {{0, 2 * kPage}, {4 * kPage, 8 * kPage}};
  ASSERT_TRUE(addresses.Add(holes, 6 * kPage, kMany, kMany).has_value());
  EXPECT_EQ(addresses.Find(holes, 6 * kPage), 10 * kPage);
  EXPECT_EQ(addresses.Find(holes, 5 * kPage), 10 * kPage);
  EXPECT_EQ(addresses.Find({{{0, kPage}, {4 * kPage, 8 * kPage}}}, 5 * kPage), 10 * kPage);
  EXPECT_EQ(addresses.Find({{{0, kPage}, {4 * kPage, 7 * kPage}}}, 4 * kPage), std::nullopt);
}

// Both have page 0: a buffer that lay in both would have it twice.
TEST(PackAddressesTest, NoPieceGoesOnFromOneGroupIntoTheNext) {
  PackAddresses addresses(kPage, 4 * kPage);
  ASSERT_EQ(addresses.Add({{{0, kPage}, {2 * kPage, 3 * kPage}}}, 2 * kPage, kMany, kMany),
            4 * kPage);
  ASSERT_EQ(addresses.Add({{{0, kPage}, {3 * kPage, 4 * kPage}}}, 2 * kPage, kMany, kMany),
            6 * kPage);
  const std::vector<ByteRange> all = {{0, 4 * kPage}};
  EXPECT_EQ(addresses.Find({{{0, kPage}, {2 * kPage, 4 * kPage}}}, 3 * kPage), std::nullopt);
  EXPECT_EQ(addresses.Find(all, 4 * kPage), 0);
}

TEST(PackAddressesTest, ABufferBeginsAndEndsInPartsOfPages) {
  PackAddresses addresses(kPage, 10 * kPage);
  const std::vector<ByteRange> holes = {{kPage / 2, 2 * kPage}, {4 * kPage, 4 * kPage + 1024}};
  const auto address = addresses.Add(holes, kPage + kPage / 2 + 1024, kMany, kMany);
  ASSERT_EQ(address, 10 * kPage + kPage / 2);
  std::vector<ByteRange> memory;
  addresses.AppendMemory(*address, kPage + kPage / 2 + 1024, &memory);
  ASSERT_EQ(memory.size(), 3u);
  EXPECT_EQ(memory[0].begin, kPage / 2);
  EXPECT_EQ(memory[1].end, 2 * kPage);
  EXPECT_EQ(memory[2].begin, 4 * kPage);
  EXPECT_EQ(memory[2].end, 4 * kPage + 1024);
}

// Its first and its last bytes are free: a group with that page at both ends would have it twice.
TEST(PackAddressesTest, OnePageIsNotBothEndsOfABuffer) {
  PackAddresses addresses(kPage, 4 * kPage);
  const std::vector<ByteRange> holes = {{kPage, kPage + 2048}, {kPage + 3072, 2 * kPage}};
  EXPECT_EQ(addresses.Add(holes, 3072, kMany, kMany), std::nullopt);
}

}  // namespace
}  // namespace terrace
