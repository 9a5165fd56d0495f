// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/transport.h"

#include <thread>

#include "gmock/gmock.h"
#include "tests/unit/worker/comm/comm_fixture.h"

namespace terrace {
namespace {

using Devices = std::vector<RankDevice>;
using Members = std::vector<uint32_t>;

TEST(TransportTest, RanksOnCpusUseGloo) {
  EXPECT_EQ(TransportOf(Devices{"", "", ""}, Members{0, 2}), Transport::kGloo);
}

TEST(TransportTest, AGpuForEachRankUsesNccl) {
  EXPECT_EQ(TransportOf(Devices{"GPU-a", "GPU-b", "GPU-c"}, Members{0, 1, 2}), Transport::kNccl);
  EXPECT_EQ(TransportOf(Devices{"GPU-a", "GPU-b"}, Members{1}), Transport::kNccl);
}

TEST(TransportTest, RanksThatShareAGpuAreStaged) {
  EXPECT_EQ(TransportOf(Devices{"GPU-a", "GPU-a"}, Members{0, 1}), Transport::kStagedGloo);
  EXPECT_EQ(TransportOf(Devices{"GPU-a", "GPU-b", "GPU-b"}, Members{0, 1, 2}),
            Transport::kStagedGloo);
}

TEST(TransportTest, AGpuSharedWithARankOfAnotherGroupIsShared) {
  const Devices devices = {"GPU-a", "GPU-b", "GPU-a", "GPU-b", "GPU-c", "GPU-d"};
  EXPECT_EQ(TransportOf(devices, Members{0, 1}), Transport::kStagedGloo);
  EXPECT_EQ(TransportOf(devices, Members{4, 5}), Transport::kNccl);
  EXPECT_EQ(TransportOf(devices, Members{1, 4}), Transport::kStagedGloo);
}

TEST(TransportTest, AGroupOfGpusAndCpusIsStaged) {
  EXPECT_EQ(TransportOf(Devices{"GPU-a", ""}, Members{0, 1}), Transport::kStagedGloo);
}

TEST(ExchangeDevicesTest, EveryRankLearnsAllInTheOrderOfRanks) {
  MapRendezvous store;
  std::vector<std::jthread> ranks;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const RankDevice own = rank == 1 ? "" : "GPU-" + std::to_string(rank);
      const auto devices = ExchangeDevices(rank, 3, own, &store, 10'000);
      ASSERT_TRUE(devices.ok()) << devices.status();
      EXPECT_THAT(*devices, testing::ElementsAre("GPU-0", "", "GPU-2"));
    });
  }
}

TEST(ExchangeDevicesTest, ARankThatNeverComesIsNamed) {
  MapRendezvous store;
  const auto devices = ExchangeDevices(0, 2, "GPU-0", &store, 20);
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(devices.status().message()), testing::HasSubstr("device/1"));
}

}  // namespace
}  // namespace terrace
