// Against the fake NCCL (tests/support/fake_nccl.h): everything but NCCL's own work. What calls do;
// nccl_failure_test.cc has those that end otherwise.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/nccl_communicator.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/worker/comm/nccl_fixture.h"
#include "worker/comm/cuda_staging.h"

namespace terrace {
namespace {

constexpr int kSizes[] = {2, 3, 4};

TEST_F(NcclCommunicatorTest, AllReduceSumsAlikeOnAllMembersWhateverTheSize) {
  for (const int size : kSizes) {
    std::vector<std::vector<float>> sums(size);
    for (const int64_t n : {1, 2, 7, 50'021}) {
      OnRanks(size, [&](Communicator* group) {
        std::vector<float> data = Values(group->rank(), n);
        ASSERT_TRUE(group->AllReduce(data.data(), n, ReduceType::kF32).ok());
        sums[group->rank()] = data;
      });
      const std::vector<float> expected = RingSum(size, n);
      for (const auto& sum : sums) {
        EXPECT_TRUE(SameBits(sum, sums[0]));
        EXPECT_THAT(sum, testing::Pointwise(testing::FloatEq(), expected));
      }
    }
  }
}

TEST_F(NcclCommunicatorTest, ReduceScatterGivesAllReducesBitsInPlaceAndApart) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      for (const int64_t part : {1, 3, 10'007}) {
        const std::vector<float> in = Values(group->rank(), size * part);
        std::vector<float> sums = in, data = in, out(part);
        ASSERT_TRUE(group->AllReduce(sums.data(), size * part, ReduceType::kF32).ok());
        const std::span<const float> own(sums.data() + group->rank() * part, part);
        ASSERT_TRUE(group->ReduceScatter(data.data(), out.data(), part, ReduceType::kF32).ok());
        EXPECT_TRUE(SameBits(out, own));
        EXPECT_TRUE(SameBits(data, in));
        float* const in_place = data.data() + group->rank() * part;
        ASSERT_TRUE(group->ReduceScatter(data.data(), in_place, part, ReduceType::kF32).ok());
        EXPECT_TRUE(SameBits({in_place, static_cast<size_t>(part)}, own));
      }
    });
  }
}

TEST_F(NcclCommunicatorTest, SumsOfBf16AreOfBf16) {
  OnRanks(2, [](Communicator* group) {
    // 1 + 2^-8 lies between two values: to the even one. 1 + 3 * 2^-8 goes up.
    std::vector<uint16_t> data = group->rank() == 0 ? std::vector<uint16_t>{0x3f80, 0x3f80, 0}
                                                    : std::vector<uint16_t>{0x3b80, 0x3c40, 0};
    ASSERT_TRUE(group->AllReduce(data.data(), 3, ReduceType::kBF16).ok());
    EXPECT_THAT(data, testing::ElementsAre(0x3f80, 0x3f82, 0));
  });
}

TEST_F(NcclCommunicatorTest, GathersExchangesShiftsAndBroadcastsMoveWhatTheySay) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      const int left = (group->rank() + size - 1) % size;
      for (const int64_t part : {1, 5, 7'001}) {
        const auto sent = [](int from, int to) { return static_cast<char>(10 * from + to + 1); };
        std::vector<char> in, out(size * part), want, gathered;
        for (int peer = 0; peer < size; ++peer) {
          in.insert(in.end(), part, sent(group->rank(), peer));
          want.insert(want.end(), part, sent(peer, group->rank()));
          gathered.insert(gathered.end(), part, sent(peer, 0));
        }
        ASSERT_TRUE(group->AllToAll(in.data(), out.data(), part).ok());
        EXPECT_EQ(out, want);
        ASSERT_TRUE(group->AllGather(in.data(), out.data(), part).ok());
        EXPECT_EQ(out, gathered);
        ASSERT_TRUE(group->AllGather(out.data() + group->rank() * part, out.data(), part).ok());
        EXPECT_EQ(out, gathered);
        ASSERT_TRUE(group->RingShift(in.data(), out.data(), size * part).ok());
        for (int peer = 0; peer < size; ++peer) EXPECT_EQ(out[peer * part], sent(left, peer));
        ASSERT_TRUE(group->Broadcast(in.data(), size * part, size - 1).ok());
        EXPECT_EQ(in.front(), sent(size - 1, 0));
        EXPECT_EQ(in.back(), sent(size - 1, size - 1));
      }
    });
  }
}

TEST_F(NcclCommunicatorTest, MessagesAndCollectivesRunAtTheSameTime) {
  messages_ = true;
  constexpr int kRanks = 3, kMessages = 10;
  OnRanks(kRanks, [](Communicator* group) {
    std::vector<std::jthread> threads;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == group->rank()) continue;
      threads.emplace_back([=] {  // its current device is another than the group's
        for (int m = 0; m < kMessages; ++m) {
          const std::vector<int32_t> data(1 + 50 * m, 100 * group->rank() + m);
          ASSERT_TRUE(group->Send(data.data(), data.size() * 4, peer).ok());
        }
      });
      threads.emplace_back([=] {
        for (int m = 0; m < kMessages; ++m) {
          std::vector<int32_t> data(1 + 50 * m);
          ASSERT_TRUE(group->Receive(data.data(), data.size() * 4, peer).ok());
          EXPECT_THAT(data, testing::Each(100 * peer + m));
        }
      });
    }
    for (int i = 0; i < kMessages; ++i) {
      std::vector<float> data(301, 1.0f);
      ASSERT_TRUE(group->AllReduce(data.data(), 301, ReduceType::kF32).ok());
      EXPECT_THAT(data, testing::Each(3.0f));
    }
  });
}

TEST_F(NcclCommunicatorTest, BytesSentAreGloos) {
  messages_ = true;
  const auto sent_by = [](Communicator* group) {
    constexpr int64_t kPart = 403;
    const int64_t n = group->size() * kPart;
    std::vector<float> a(n + 1), b(n);
    std::vector<int64_t> sent = {group->bytes_sent()};
    const auto count = [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      sent.push_back(group->bytes_sent());
    };
    for (const int64_t elements : {int64_t{1}, n - 1, n, n + 1})
      count(group->AllReduce(a.data(), elements, ReduceType::kF32));
    count(group->ReduceScatter(a.data(), b.data(), kPart, ReduceType::kF32));
    count(group->AllGather(a.data(), b.data(), kPart * 4));
    count(group->AllToAll(a.data(), b.data(), kPart * 4));
    count(group->RingShift(a.data(), b.data(), kPart));
    for (int root = 0; root < group->size(); ++root) count(group->Broadcast(a.data(), 999, root));
    count(group->Barrier());
    if (group->rank() == 0) count(group->Send(a.data(), 1'234, 1));
    if (group->rank() == 1) count(group->Receive(a.data(), 1'234, 0));
    return sent;
  };
  for (const int size : kSizes) {
    MapRendezvous store;
    std::vector<std::vector<int64_t>> gloo(size), nccl(size);
    OnMembers(
        size,
        [&](int rank) {
          GroupOptions options = Options(rank, size);
          options.interface_address = "127.0.0.1";
          return ConnectGloo(options, &store);
        },
        [&](Communicator* group) { gloo[group->rank()] = sent_by(group); });
    OnRanks(size, [&](Communicator* group) { nccl[group->rank()] = sent_by(group); });
    EXPECT_EQ(nccl, gloo);
  }
}

TEST_F(NcclCommunicatorTest, AGroupOfOneCopiesAndNeedsNoStore) {
  const Stream stream(0);
  const auto group = ConnectNccl(Options(0, 1), nullptr, stream.stream);
  ASSERT_TRUE(group.ok()) << group.status();
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
  EXPECT_TRUE((*group)->Barrier().ok());
  EXPECT_EQ((*group)->bytes_sent(), 0);
}

TEST_F(NcclCommunicatorTest, ConnectingRunsEachKindOnce) {
  messages_ = true;
  fake_nccl::TakeCalls();
  OnRanks(2, [](Communicator* group) { ASSERT_TRUE(group->Barrier().ok()); });
  std::vector<std::string> calls = fake_nccl::TakeCalls();
  // A ring shift, an all-to-all and a message in each direction are messages to NCCL; an all-reduce
  // of one element more than members has all three kinds of sums; the last one is the barrier.
  EXPECT_THAT(calls, testing::UnorderedElementsAre("messages", "messages", "messages", "messages",
                                                   "reduce-scatter", "all-gather", "all-reduce",
                                                   "broadcast", "reduce-scatter", "all-reduce"));
}

TEST_F(NcclCommunicatorTest, WorkOnTheStreamComesBeforeACollective) {
  messages_ = true;
  OnRanks(2, [](NcclCommunicator* group) {
    EXPECT_NE(group->stream(), nullptr);
    EXPECT_NE(group->send_stream(1 - group->rank()), group->stream());
    EXPECT_NE(group->receive_stream(1 - group->rank()), group->send_stream(1 - group->rank()));
    EXPECT_EQ(group->send_stream(group->rank()), nullptr);
    // A slow copy to "device" memory, put on the group's stream by somebody else.
    const auto staging = CudaStaging(group->stream())({}, 400'000);
    ASSERT_TRUE(staging.ok());
    std::vector<float> data(100'000);
    std::fill_n(reinterpret_cast<float*>((*staging)->data()), 100'000, 1.0f);
    ASSERT_TRUE((*staging)->ToDevice(data.data(), (*staging)->data(), 400'000).ok());
    ASSERT_TRUE(group->AllReduce(data.data(), 100'000, ReduceType::kF32).ok());
    EXPECT_THAT(data, testing::Each(2.0f));
  });
}

// What the total order of launches rests on: calls of several groups on one stream run in the order
// in which they were made.
TEST_F(NcclCommunicatorTest, GroupsOfOneStreamRunInTheOrderOfTheCalls) {
  MapRendezvous store;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const Stream stream(rank);
      GroupOptions options = Options(rank, 2);
      const auto a = ConnectNccl(options, &store, stream.stream);
      options.name = "tensor.0";
      const auto b = ConnectNccl(options, &store, stream.stream);
      ASSERT_TRUE(a.ok() && b.ok());
      std::vector<float> data(4, 1.0f);
      for (int step = 0; step < 5; ++step) {
        ASSERT_TRUE((*a)->AllReduce(data.data(), 4, ReduceType::kF32).ok());
        ASSERT_TRUE((*b)->AllReduce(data.data(), 4, ReduceType::kF32).ok());
      }
      EXPECT_THAT(data, testing::Each(1024.0f));
    });
  }
}

}  // namespace
}  // namespace terrace
