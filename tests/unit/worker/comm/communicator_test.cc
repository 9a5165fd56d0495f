// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/interface_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/comm_fixture.h"
#include "tests/unit/worker/comm/gloo_fixture.h"

namespace terrace {
namespace {

class CommunicatorTest : public GlooTest {};

constexpr int kSizes[] = {2, 3, 4, 5};

TEST_F(CommunicatorTest, AGroupOfOneNeedsNoStore) {
  auto group = ConnectGloo({.name = "alone", .rank = 0, .size = 1}, nullptr);
  ASSERT_TRUE(group.ok());
  float value = 3;
  EXPECT_TRUE((*group)->AllReduce(&value, 1, ReduceType::kF32).ok());
  EXPECT_EQ(value, 3);
}

TEST_F(CommunicatorTest, AGroupOfOneCopies) {
  auto group = ConnectGloo({.name = "alone", .rank = 0, .size = 1}, nullptr);
  ASSERT_TRUE(group.ok());
  const std::vector<float> in = Values(0, 5);
  for (const auto& call : std::vector<std::function<absl::Status(float*)>>{
           [&](float* out) { return (*group)->ReduceScatter(in.data(), out, 5, ReduceType::kF32); },
           [&](float* out) { return (*group)->AllGather(in.data(), out, 20); },
           [&](float* out) { return (*group)->AllToAll(in.data(), out, 20); },
           [&](float* out) { return (*group)->RingShift(in.data(), out, 20); }}) {
    std::vector<float> out(5);
    ASSERT_TRUE(call(out.data()).ok());
    EXPECT_EQ(out, in);
  }
  EXPECT_FALSE((*group)->Send(in.data(), 20, 0).ok());
  EXPECT_EQ((*group)->bytes_sent(), 0);
}

// Element counts below the group's size, that do not divide, of several segments.
TEST_F(CommunicatorTest, AllReduceSumsInOneOrderOnEveryRankAndRun) {
  for (int size : kSizes) {
    for (int run = 0; run < 2; ++run) {
      OnRanks(size, [size](Communicator* group) {
        for (int64_t n : {1, 2, 7, 50'021, 1'300'003}) {
          std::vector<float> data = Values(group->rank(), n);
          ASSERT_TRUE(group->AllReduce(data.data(), n, ReduceType::kF32).ok());
          EXPECT_TRUE(SameBits(data, RingSum(size, n))) << n << " over " << size;
        }
      });
    }
  }
}

TEST_F(CommunicatorTest, ReduceScatterGivesAllReducesBitsAndLeavesItsInput) {
  for (int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      for (int64_t part : {1, 3, 10'007, 300'001}) {
        const std::vector<float> in = Values(group->rank(), size * part);
        const std::vector<float> expected = RingSum(size, size * part);
        const std::span<const float> own(expected.data() + group->rank() * part, part);
        std::vector<float> data = in, out(part);
        ASSERT_TRUE(group->ReduceScatter(data.data(), out.data(), part, ReduceType::kF32).ok());
        EXPECT_TRUE(SameBits(out, own)) << part << " over " << size;
        EXPECT_TRUE(SameBits(data, in));
        float* in_place = data.data() + group->rank() * part;
        ASSERT_TRUE(group->ReduceScatter(data.data(), in_place, part, ReduceType::kF32).ok());
        EXPECT_TRUE(SameBits({in_place, static_cast<size_t>(part)}, own));
      }
    });
  }
}

TEST_F(CommunicatorTest, AllGatherPutsEveryPartInItsPlace) {
  for (int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      for (int64_t part : {1, 5, 70'001, 3'000'017}) {  // bytes
        std::vector<char> own(part, static_cast<char>(group->rank() + 1)), all(size * part);
        ASSERT_TRUE(group->AllGather(own.data(), all.data(), part).ok());
        for (int64_t i = 0; i < size * part; ++i) ASSERT_EQ(all[i], i / part + 1) << i;
        for (int64_t i = 0; i < size * part; ++i)
          if (i / part != group->rank()) all[i] = 0;
        ASSERT_TRUE(group->AllGather(all.data() + group->rank() * part, all.data(), part).ok());
        for (int64_t i = 0; i < size * part; ++i) ASSERT_EQ(all[i], i / part + 1) << i;
      }
    });
  }
}

TEST_F(CommunicatorTest, AllToAllTransposesAndRingShiftTurns) {
  for (int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      constexpr int64_t kPart = 40'001;
      std::vector<int32_t> in(size * kPart), out(in.size(), -1);
      for (size_t i = 0; i < in.size(); ++i)
        in[i] = static_cast<int32_t>(group->rank() * in.size() + i);
      ASSERT_TRUE(group->AllToAll(in.data(), out.data(), kPart * 4).ok());
      for (size_t i = 0; i < out.size(); ++i) {
        const int64_t from = i / kPart, at = group->rank() * kPart + i % kPart;
        ASSERT_EQ(out[i], static_cast<int32_t>(from * in.size() + at));
      }
      ASSERT_TRUE(group->RingShift(in.data(), out.data(), in.size() * 4).ok());
      const int left = (group->rank() + size - 1) % size;
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], static_cast<int32_t>(left * in.size() + i));
    });
  }
}

TEST_F(CommunicatorTest, BytesSentAreThoseOfTheFormulas) {
  for (int size : kSizes) {
    std::atomic<int64_t> broadcast{0};
    OnRanks(size, [&](Communicator* group) {
      EXPECT_EQ(group->bytes_sent(), 0) << "connecting does not count";
      const auto sent = [group](const std::function<absl::Status()>& call) {
        const int64_t before = group->bytes_sent();
        EXPECT_TRUE(call().ok());
        return group->bytes_sent() - before;
      };
      constexpr int64_t kPart = 4'003;
      const int64_t n = size * kPart, v = n * 4;
      std::vector<float> a(n + 1), b(n);
      const auto all_reduce = [&](int64_t elements) {
        return sent([&] { return group->AllReduce(a.data(), elements, ReduceType::kF32); });
      };
      EXPECT_EQ(all_reduce(n), 2 * v * (size - 1) / size);
      // One element more: parts of kPart + 1, the last one smaller.
      const auto part = [&](int p) {
        return std::min(n + 1, (p + 1) * (kPart + 1)) - std::min(n + 1, p * (kPart + 1));
      };
      EXPECT_EQ(all_reduce(n + 1),
                4 * (2 * (n + 1) - part(group->rank()) - part((group->rank() + 1) % size)));
      EXPECT_EQ(
          sent([&] { return group->ReduceScatter(a.data(), b.data(), kPart, ReduceType::kF32); }),
          v * (size - 1) / size);
      EXPECT_EQ(sent([&] { return group->AllGather(a.data(), b.data(), v / size); }),
                v * (size - 1) / size);
      EXPECT_EQ(sent([&] { return group->AllToAll(a.data(), b.data(), v / size); }),
                v * (size - 1) / size);
      EXPECT_EQ(sent([&] { return group->RingShift(a.data(), b.data(), v); }), v);
      broadcast += sent([&] { return group->Broadcast(a.data(), v, 1); });
      EXPECT_EQ(sent([&] { return group->Barrier(); }), 0);
      if (group->rank() == 0) {
        EXPECT_EQ(sent([&] { return group->Send(a.data(), v, 1); }), v);
      } else if (group->rank() == 1) {
        EXPECT_EQ(sent([&] { return group->Receive(a.data(), v, 0); }), 0);
      }
    });
    EXPECT_EQ(broadcast.load(), int64_t{size} * 4'003 * 4 * (size - 1));
  }
}

// A thread for each direction and peer, and one for collectives, all on one communicator.
TEST_F(CommunicatorTest, MessagesAndCollectivesOfOneGroupRunAtTheSameTime) {
  constexpr int kRanks = 3, kMessages = 40;
  OnRanks(kRanks, [](Communicator* group) {
    std::vector<std::jthread> threads;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == group->rank()) continue;
      threads.emplace_back([=] {
        for (int m = 0; m < kMessages; ++m) {
          const std::vector<int32_t> data(1 + 5'000 * (m % 7), 100 * group->rank() + m);
          ASSERT_TRUE(group->Send(data.data(), data.size() * 4, peer).ok());
        }
      });
      threads.emplace_back([=] {
        for (int m = 0; m < kMessages; ++m) {
          std::vector<int32_t> data(1 + 5'000 * (m % 7));
          ASSERT_TRUE(group->Receive(data.data(), data.size() * 4, peer).ok());
          EXPECT_THAT(data, testing::Each(100 * peer + m)) << "messages arrive in order";
        }
      });
    }
    for (int i = 0; i < kMessages; ++i) {
      std::vector<float> data = Values(group->rank(), 30'001);
      ASSERT_TRUE(group->AllReduce(data.data(), data.size(), ReduceType::kF32).ok());
      EXPECT_TRUE(SameBits(data, RingSum(kRanks, data.size())));
    }
  });
}

// A rank one of whose streams has failed must not wait for peers that wait for it.
TEST_F(CommunicatorTest, AbortEndsCallsOfOtherThreads) {
  OnRanks(2, [](Communicator* group) {
    if (group->rank() == 1) {  // alive, and silent
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    std::vector<float> data(1'000'000);
    absl::Status receive, sum;
    std::jthread receiver([&] { receive = group->Receive(data.data(), 4, 1); });
    std::jthread summer(
        [&] { sum = group->AllReduce(data.data(), data.size(), ReduceType::kF32); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto start = std::chrono::steady_clock::now();
    group->Abort();
    receiver.join();
    summer.join();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(200));
    EXPECT_EQ(receive.code(), absl::StatusCode::kCancelled) << receive;
    EXPECT_EQ(sum.code(), absl::StatusCode::kCancelled) << sum;
    EXPECT_EQ(group->Send(data.data(), 4, 1).code(), absl::StatusCode::kCancelled);
  });
}

double SecondsOf(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_F(CommunicatorTest, ASlowedLinkTakesLatencyAndBytesOverItsRate) {
  link_ = {.bytes_per_second = 20e6, .latency_seconds = 0.02};
  OnRanks(2, [](Communicator* group) {
    std::vector<float> data(1'000'000), part(500'000);  // 4 MB: 2 MB cross the link
    ASSERT_TRUE(group->Barrier().ok());
    const double scatter = SecondsOf([&] {
      ASSERT_TRUE(
          group->ReduceScatter(data.data(), part.data(), part.size(), ReduceType::kF32).ok());
    });
    EXPECT_GT(scatter, 0.119);
    EXPECT_LT(scatter, 0.25) << "segments follow each other; only the first waits for the latency";
    const double reduce = SecondsOf(
        [&] { ASSERT_TRUE(group->AllReduce(data.data(), data.size(), ReduceType::kF32).ok()); });
    EXPECT_GT(reduce, 0.239);
    if (group->rank() == 1) {
      ASSERT_TRUE(group->Receive(data.data(), 1'000'000, 0).ok());
      return;
    }
    const double message =
        SecondsOf([&] { ASSERT_TRUE(group->Send(data.data(), 1'000'000, 1).ok()); });
    EXPECT_GT(message, 0.069);
  });
}

TEST_F(CommunicatorTest, AllReduceOfF16RoundsToNearestEvenAndOverflowsToInfinity) {
  OnRanks(2, [](Communicator* group) {
    // 1 + 2^-11 lies between two f16 values: to the even one. 1 + 3 * 2^-11 goes up.
    std::vector<uint16_t> data = group->rank() == 0
                                     ? std::vector<uint16_t>{0x3c00, 0x3c00, 0x7bff, 0xfc00}
                                     : std::vector<uint16_t>{0x1000, 0x1600, 0x7bff, 0x3c00};
    ASSERT_TRUE(group->AllReduce(data.data(), 4, ReduceType::kF16).ok());
    EXPECT_THAT(data, testing::ElementsAre(0x3c00, 0x3c02, 0x7c00, 0xfc00));
  });
}

TEST_F(CommunicatorTest, AllReduceOfBF16RoundsToNearestEven) {
  OnRanks(2, [](Communicator* group) {
    // 1 + 2^-8 lies between two bf16 values: to the even one. 1 + 3 * 2^-8 goes up.
    std::vector<uint16_t> data = group->rank() == 0 ? std::vector<uint16_t>{0x3f80, 0x3f80}
                                                    : std::vector<uint16_t>{0x3b80, 0x3c40};
    ASSERT_TRUE(group->AllReduce(data.data(), 2, ReduceType::kBF16).ok());
    EXPECT_THAT(data, testing::ElementsAre(0x3f80, 0x3f82));
  });
}

TEST_F(CommunicatorTest, BroadcastCopiesTheRootsBytes) {
  OnRanks(4, [](Communicator* group) {
    std::vector<char> data(1000, static_cast<char>(group->rank()));
    ASSERT_TRUE(group->Broadcast(data.data(), data.size(), 2).ok());
    EXPECT_THAT(data, testing::Each(char{2}));
    EXPECT_TRUE(group->Barrier().ok());
  });
}

TEST(InterfaceAddressTest, IsANumericAddress) {
  EXPECT_THAT(PrimaryAddress(), testing::MatchesRegex("[0-9.]+"));
}

}  // namespace
}  // namespace terrace
