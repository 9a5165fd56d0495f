// What ranks that share a GPU count of it as their own, where the driver tells the sum of all.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/nvml.h"
#include "tests/support/fake_nvml.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/worker/comm/comm_fixture.h"
#include "worker/device/backend.h"

// Whether this process shares the driver's numbers: asked of this and not of the machine.
static bool shares_numbers = true;
bool terrace::kernels::cuda::SharesProcessNumbers() { return shares_numbers; }

namespace terrace {
namespace {

constexpr int64_t kContexts = 90 << 20;  // of all ranks on the device
constexpr int64_t kFaultWord = 8;
constexpr int64_t kTimeoutMs = 20'000;

// Ranks with arenas of these sizes, rank r on device r % devices. What each holds outside its own.
std::vector<int64_t> External(const std::vector<int64_t>& arenas, int devices) {
  simt::ResetDevice({.devices = devices, .context_bytes = kContexts});
  MapRendezvous store;
  std::vector<int64_t> external(arenas.size(), -1);
  std::vector<std::unique_ptr<Backend>> backends(arenas.size());
  std::vector<std::unique_ptr<Region>> regions(arenas.size());
  {
    std::vector<std::jthread> ranks;
    for (uint32_t rank = 0; rank < arenas.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        auto backend = OpenBackend("cuda", static_cast<int>(rank));
        ASSERT_TRUE(backend.ok()) << backend.status();
        backends[rank] = *std::move(backend);
        auto region = backends[rank]->ReserveDevice("rank", {.bytes = arenas[rank]}, 1);
        ASSERT_TRUE(region.ok()) << region.status();
        regions[rank] = *std::move(region);
        const auto count = static_cast<uint32_t>(arenas.size());
        ASSERT_TRUE(backends[rank]->MeetRanks(rank, count, &store, kTimeoutMs).ok());
        const auto bytes = backends[rank]->ExternalBytes(arenas[rank], &store);
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        external[rank] = *bytes;
      });
    }
  }
  return external;
}

TEST(SharedDeviceTest, ARankAloneCountsAllThatIsNotItsArena) {
  EXPECT_EQ(External({5 << 20}, 1), (std::vector<int64_t>{kContexts + kFaultWord}));
}

TEST(SharedDeviceTest, RanksOfAJobDoNotCountEachOthersArenas) {
  const int64_t each = (kContexts + 3 * kFaultWord) / 3;
  EXPECT_EQ(External({5 << 20, 64 << 20, 1 << 20}, 1), (std::vector<int64_t>{each, each, each}));
}

TEST(SharedDeviceTest, ARankThatNeverSaysWhatItReservedIsNamed) {
  simt::ResetDevice({.context_bytes = kContexts});
  MapRendezvous store;
  const auto one = OpenBackend("cuda", 0), other = OpenBackend("cuda", 0);
  ASSERT_TRUE(one.ok() && other.ok());
  {
    const std::jthread meets([&] { EXPECT_TRUE((*other)->MeetRanks(1, 2, &store, 20).ok()); });
    ASSERT_TRUE((*one)->MeetRanks(0, 2, &store, /*timeout_ms=*/200).ok());
  }
  const absl::Status status = (*one)->ExternalBytes(1 << 20, &store).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("rank 1, which shares this rank's GPU, has not said"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("that rank's log"));
}

// The values come late: the other ranks are gone on by then.
class SlowRendezvous final : public RendezvousStore {
 public:
  explicit SlowRendezvous(RendezvousStore* store) : store_(store) {}
  absl::Status Set(const std::string& key, const std::vector<char>& value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::vector<std::vector<char>>> Wait(const std::vector<std::string>& keys,
                                                      int64_t timeout_ms) override {
    auto values = store_->Wait(keys, timeout_ms);
    absl::SleepFor(absl::Milliseconds(60));
    return values;
  }

 private:
  RendezvousStore* const store_;
};

// As when one of them gives back its graphs as soon as it has seen that they do not fit.
TEST(SharedDeviceTest, NoRankSeesWhatAnotherChangesAfterItLooked) {
  constexpr int64_t kGraphs = 16 << 20;
  simt::ResetDevice({.context_bytes = kContexts});
  MapRendezvous store;
  std::vector<std::vector<int64_t>> seen(2);
  std::vector<std::unique_ptr<Backend>> backends(2);
  {
    std::vector<std::jthread> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        SlowRendezvous slow(&store);
        RendezvousStore* const own = rank == 0 ? &store : static_cast<RendezvousStore*>(&slow);
        backends[rank] = *OpenBackend("cuda", 0);
        ASSERT_TRUE(backends[rank]->MeetRanks(rank, 2, own, kTimeoutMs).ok());
        std::byte* graphs = nullptr;
        bool exhausted = false;
        const bool allocated =
            rank != 0 || kernels::cuda::AllocateDevice(kGraphs, &graphs, &exhausted).ok();
        ASSERT_TRUE(allocated);
        for (int look = 0; look < 2; ++look) {
          const auto bytes = backends[rank]->ExternalBytes(0, own);
          ASSERT_TRUE(bytes.ok()) << bytes.status();
          seen[rank].push_back(*bytes);
          if (rank == 0 && look == 0) kernels::cuda::FreeDevice(graphs);
        }
      });
    }
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0][0] - seen[0][1], kGraphs / 2) << "each counts half";
}

// As where others come and go between two readings: who decides by the figure decides as the rest.
TEST(SharedDeviceTest, RanksOfADeviceCountByOneReading) {
  constexpr int64_t kOthers = 32 << 20;
  simt::ResetDevice({.context_bytes = kContexts});
  MapRendezvous store;
  std::vector<int64_t> seen(2, -1);
  std::vector<std::unique_ptr<Backend>> backends(2);
  std::byte* others = nullptr;
  // Between rank 0's reading and rank 1's, which waits for it here.
  struct Late final : RendezvousStore {
    explicit Late(RendezvousStore* store, std::byte** others) : store(store), others(others) {}
    absl::Status Set(const std::string& key, const std::vector<char>& value) override {
      return store->Set(key, value);
    }
    absl::StatusOr<std::vector<std::vector<char>>> Wait(const std::vector<std::string>& keys,
                                                        int64_t timeout_ms) override {
      auto values = store->Wait(keys, timeout_ms);
      if (keys[0] == "device-memory/0/1") {
        EXPECT_TRUE(store->Wait({"device-memory/1/0"}, timeout_ms).ok()) << "rank 0 has read";
        bool exhausted = false;
        EXPECT_TRUE(kernels::cuda::AllocateDevice(kOthers, others, &exhausted).ok());
      }
      return values;
    }
    RendezvousStore* store;
    std::byte** others;
  } late(&store, &others);
  {
    std::vector<std::jthread> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        RendezvousStore* const own = rank == 0 ? &store : static_cast<RendezvousStore*>(&late);
        backends[rank] = *OpenBackend("cuda", 0);
        ASSERT_TRUE(backends[rank]->MeetRanks(rank, 2, own, kTimeoutMs).ok());
        const auto bytes = backends[rank]->ExternalBytes(0, own);
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        seen[rank] = *bytes;
      });
    }
  }
  EXPECT_EQ(seen[0], (kContexts + kOthers + 2 * kFaultWord) / 2);
  EXPECT_EQ(seen[1], seen[0]);
  kernels::cuda::FreeDevice(others);
}

// What a rank with this arena holds outside of it when the driver lists these processes.
struct Told {
  int64_t external = -1;
  DriverUse now, later;  // later: another process has taken kLater
};
Told WithNvml(std::vector<fake_nvml::Process> processes) {
  constexpr int64_t kArena = 5 << 20, kLater = 3 << 20;
  simt::ResetDevice({.context_bytes = kContexts});
  fake_nvml::Set(
      {.devices = {"GPU-01000000-0000-0000-0000-000000000000"}, .processes = std::move(processes)});
  Told told;
  const auto backend = OpenBackend("cuda", 0);
  const auto region = (*backend)->ReserveDevice("rank", {.bytes = kArena}, 1);
  EXPECT_TRUE((*backend)->MeetRanks(0, 1, nullptr, kTimeoutMs).ok());
  told.external = (*backend)->ExternalBytes(kArena, nullptr).value_or(-1);
  told.now = (*backend)->AskDriver();
  std::byte* more = nullptr;
  bool exhausted = false;
  EXPECT_TRUE(kernels::cuda::AllocateDevice(kLater, &more, &exhausted).ok());
  std::jthread([&] { told.later = (*backend)->AskDriver(); }).join();
  kernels::cuda::FreeDevice(more);
  fake_nvml::Set({});
  return told;
}

TEST(DriverUseTest, WhereTheDriverTellsOfTheProcessThatIsWhatCounts) {
  const Told told = WithNvml({{7, 400 << 20}, {static_cast<unsigned>(::getpid()), 55 << 20}});
  EXPECT_EQ(told.external, 50 << 20);
  EXPECT_EQ(told.now.bytes, 55 << 20);
  EXPECT_EQ(told.now.source, "NVML");
  EXPECT_EQ(told.later.bytes, 55 << 20) << "another process is no matter of ours";
}

TEST(DriverUseTest, WhereItDoesNotTheChangeSinceThePreparationCounts) {
  const Told told = WithNvml({{7, 400 << 20}, {8, 55 << 20}});
  EXPECT_EQ(told.external, kContexts + kFaultWord);
  EXPECT_EQ(told.now.bytes, told.external + (5 << 20));
  EXPECT_EQ(told.later.bytes - told.now.bytes, 3 << 20);
  EXPECT_THAT(told.now.source, testing::StartsWith("cudaMemGetInfo, by what all processes"));
  EXPECT_THAT(told.now.source, testing::HasSubstr("NVML: the driver lists 2 processes"));
}

TEST(DriverUseTest, InAContainerAProcessOfTheSameNumberIsNotThisOne) {
  shares_numbers = false;
  const auto own = static_cast<unsigned>(::getpid());
  const Told other = WithNvml({{own, 55 << 20}}), same = WithNvml({{7, 91 << 20}});
  shares_numbers = true;
  EXPECT_EQ(other.external, kContexts + kFaultWord) << "5 MiB fit beside 55 of 95";
  EXPECT_EQ(same.external, 86 << 20) << "they do not beside 91";
  EXPECT_EQ(same.now.source, "NVML");
}

TEST(DriverUseTest, ADeviceThatNvmlDoesNotKnowIsNamed) {
  simt::ResetDevice({.context_bytes = kContexts});
  fake_nvml::Set({});
  const auto backend = OpenBackend("cuda", 0);
  EXPECT_TRUE((*backend)->MeetRanks(0, 1, nullptr, kTimeoutMs).ok());
  EXPECT_TRUE((*backend)->ExternalBytes(0, nullptr).ok());
  EXPECT_THAT((*backend)->AskDriver().source, testing::EndsWith("NVML: the device: Not Found"));
}

TEST(DriverUseTest, LoadsAreThoseOfTheProcessesAndOfWhatRuns) {
  simt::ResetDevice({.context_bytes = kContexts});
  const std::vector<DeviceSummary> devices = {{.uuid = "01000000000000000000000000000000"}};
  const auto look = [&](int busy_percent) {
    fake_nvml::Set({.devices = {"GPU-01000000-0000-0000-0000-000000000000"},
                    .processes = {{7, 1}, {8, 1}},
                    .busy_percent = busy_percent});
    const auto loads = LoadsOf(devices);
    EXPECT_TRUE(loads.ok()) << loads.status();
    return loads.ok() && loads->size() == 1 ? loads->front() : DeviceLoad();
  };
  EXPECT_EQ(look(30).processes, 2);
  EXPECT_EQ(look(30).busy_percent, 30);
  EXPECT_EQ(look(-1).processes, 2);
  EXPECT_EQ(look(-1).busy_percent, std::nullopt);
  fake_nvml::Set({});
  EXPECT_EQ(LoadsOf(devices).status().code(), absl::StatusCode::kUnavailable);
}

// The fake has one memory whatever the device: only who meets whom is seen here.
TEST(SharedDeviceTest, RanksWithADeviceEachMeetNobody) {
  const std::vector<int64_t> external = External({4 << 20, 4 << 20}, 2);
  EXPECT_GE(external[0], kContexts);
  EXPECT_GE(external[1], kContexts);
}

}  // namespace
}  // namespace terrace
