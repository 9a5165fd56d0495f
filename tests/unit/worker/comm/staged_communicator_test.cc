// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/staged_communicator.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/worker/comm/comm_fixture.h"

namespace terrace {
namespace {

// "Device" memory is plain memory, but copies happen only when they are waited for, as late as a
// device may make them, and never outside the buffer.
class LateBuffer final : public StagingBuffer {
 public:
  explicit LateBuffer(int64_t bytes) : memory_(bytes) {}
  std::byte* data() override { return memory_.data(); }
  absl::Status ToHost(std::byte* host, const void* device, int64_t bytes) override {
    return Queue(host, host, device, bytes);
  }
  absl::Status ToDevice(void* device, const std::byte* host, int64_t bytes) override {
    return Queue(host, device, host, bytes);
  }
  absl::Status Wait() override {
    for (const auto& copy : queue_) copy();
    queue_.clear();
    return absl::OkStatus();
  }

 private:
  absl::Status Queue(const std::byte* inside, void* to, const void* from, int64_t bytes) {
    EXPECT_GE(inside, memory_.data());
    EXPECT_LE(inside + bytes, memory_.data() + memory_.size());
    queue_.push_back([=] { std::memcpy(to, from, bytes); });
    return absl::OkStatus();
  }
  std::vector<std::byte> memory_;
  std::vector<std::function<void()>> queue_;
};

class StagedCommunicatorTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Communicator>> Plain(int rank, int size) {
    return ConnectGloo(Options("plain", rank, size), &store_);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Staged(int rank, int size) {
    auto host = ConnectGloo(Options("staged", rank, size), &store_);
    if (!host.ok()) return host.status();
    return StageThroughHost(std::move(*host), Options("staged", rank, size), make_, sizes_);
  }
  GroupOptions Options(const std::string& name, int rank, int size) const {
    GroupOptions options = {.name = name + std::to_string(size), .rank = rank, .size = size};
    options.interface_address = "127.0.0.1";
    options.timeout_ms = 10'000;
    options.message_peers = Peers(rank, size);
    return options;
  }
  static std::vector<int> Peers(int rank, int size) {
    std::vector<int> peers;
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) peers.push_back(peer);
    return peers;
  }
  void OnRanks(int size, const std::function<void(Communicator*)>& body) {
    OnMembers(
        size, [&](int rank) { return Staged(rank, size); }, body);
  }

  MapRendezvous store_;
  std::atomic<int64_t> reserved_{0};
  MakeStagingBuffer make_ = [this](StagingUse, int64_t bytes) {
    reserved_ += bytes;
    return std::make_unique<LateBuffer>(bytes);
  };
  // A few hundred bytes: every payload of these tests takes many pieces.
  StagingSizes sizes_ = {.collective_bytes = 1'900, .message_bytes = 200};
};

constexpr int kSizes[] = {1, 2, 3, 5};
constexpr int64_t kCounts[] = {1, 2, 7, 64, 1'001};

TEST_F(StagedCommunicatorTest, AllReduceGivesTheBitsOfTheHostsRing) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      for (const int64_t n : kCounts) {
        std::vector<float> data = Values(group->rank(), n);
        ASSERT_TRUE(group->AllReduce(data.data(), n, ReduceType::kF32).ok());
        EXPECT_TRUE(SameBits(data, RingSum(size, n))) << n << " over " << size;
      }
    });
  }
}

TEST_F(StagedCommunicatorTest, ReduceScatterGivesAllReducesBitsInPlaceAndApart) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      for (const int64_t part : kCounts) {
        const std::vector<float> in = Values(group->rank(), size * part);
        const std::vector<float> sums = RingSum(size, size * part);
        const std::span<const float> expected(sums.data() + group->rank() * part, part);
        std::vector<float> data = in, out(part);
        ASSERT_TRUE(group->ReduceScatter(data.data(), out.data(), part, ReduceType::kF32).ok());
        EXPECT_TRUE(SameBits(out, expected)) << part << " over " << size;
        EXPECT_TRUE(SameBits(data, in));
        float* const own = data.data() + group->rank() * part;
        ASSERT_TRUE(group->ReduceScatter(data.data(), own, part, ReduceType::kF32).ok());
        EXPECT_TRUE(SameBits({own, static_cast<size_t>(part)}, expected));
      }
    });
  }
}

TEST_F(StagedCommunicatorTest, SumsOfBf16AreTheHostsToo) {
  const auto values = [](int member, int64_t n) {
    std::vector<uint16_t> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<uint16_t>(0x3f80 + 37 * i + member);
    return values;
  };
  std::vector<std::vector<uint16_t>> plain(3), staged(3);
  const auto sum = [&](std::vector<std::vector<uint16_t>>* sums) {
    return [&values, sums](Communicator* group) {
      std::vector<uint16_t> data = values(group->rank(), 501);
      ASSERT_TRUE(group->AllReduce(data.data(), 501, ReduceType::kBF16).ok());
      (*sums)[group->rank()] = data;
    };
  };
  OnMembers(
      3, [&](int rank) { return Plain(rank, 3); }, sum(&plain));
  OnRanks(3, sum(&staged));
  EXPECT_EQ(staged, plain);
}

TEST_F(StagedCommunicatorTest, AllGatherPutsEveryPartInItsPlaceInPlaceAndApart) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      for (const int64_t part : kCounts) {
        std::vector<char> own(part, static_cast<char>(group->rank() + 1)), all(size * part), want;
        for (int member = 0; member < size; ++member)
          want.insert(want.end(), part, static_cast<char>(member + 1));
        ASSERT_TRUE(group->AllGather(own.data(), all.data(), part).ok());
        EXPECT_EQ(all, want);
        std::fill(all.begin(), all.end(), 0);
        std::copy(own.begin(), own.end(), all.begin() + group->rank() * part);
        ASSERT_TRUE(group->AllGather(all.data() + group->rank() * part, all.data(), part).ok());
        EXPECT_EQ(all, want);
      }
    });
  }
}

TEST_F(StagedCommunicatorTest, AllToAllTransposesRingShiftTurnsAndBroadcastCopies) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator* group) {
      const int left = (group->rank() + size - 1) % size;
      for (const int64_t part : kCounts) {
        const auto sent = [&](int from, int to) { return static_cast<char>(10 * from + to + 1); };
        std::vector<char> in, out(size * part), want;
        for (int peer = 0; peer < size; ++peer) {
          in.insert(in.end(), part, sent(group->rank(), peer));
          want.insert(want.end(), part, sent(peer, group->rank()));
        }
        ASSERT_TRUE(group->AllToAll(in.data(), out.data(), part).ok());
        EXPECT_EQ(out, want);
        ASSERT_TRUE(group->RingShift(in.data(), out.data(), size * part).ok());
        for (int peer = 0; peer < size; ++peer) EXPECT_EQ(out[peer * part], sent(left, peer));
        ASSERT_TRUE(group->Broadcast(in.data(), size * part, size - 1).ok());
        for (int peer = 0; peer < size; ++peer)
          EXPECT_EQ(in[(peer + 1) * part - 1], sent(size - 1, peer));
      }
    });
  }
}

TEST_F(StagedCommunicatorTest, MessagesAndCollectivesRunAtTheSameTime) {
  constexpr int kRanks = 3, kMessages = 10;
  OnRanks(kRanks, [](Communicator* group) {
    std::vector<std::jthread> threads;
    for (const int peer : Peers(group->rank(), kRanks)) {
      threads.emplace_back([=] {
        for (int m = 0; m < kMessages; ++m) {
          const std::vector<int32_t> data(1 + 57 * m, 100 * group->rank() + m);
          ASSERT_TRUE(group->Send(data.data(), data.size() * 4, peer).ok());
        }
      });
      threads.emplace_back([=] {
        for (int m = 0; m < kMessages; ++m) {
          std::vector<int32_t> data(1 + 57 * m);
          ASSERT_TRUE(group->Receive(data.data(), data.size() * 4, peer).ok());
          EXPECT_THAT(data, testing::Each(100 * peer + m));
        }
      });
    }
    for (int i = 0; i < kMessages; ++i) {
      std::vector<float> data = Values(group->rank(), 301);
      ASSERT_TRUE(group->AllReduce(data.data(), 301, ReduceType::kF32).ok());
      EXPECT_TRUE(SameBits(data, RingSum(kRanks, 301)));
    }
  });
}

// What every operation adds to bytes_sent, on one member.
std::vector<int64_t> SentByEach(Communicator* group) {
  constexpr int64_t kPart = 403;
  const int64_t n = group->size() * kPart;
  std::vector<float> a(n + 1), b(n);
  std::vector<int64_t> sent;
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
  if (group->rank() == 0 && group->size() > 1) count(group->Send(a.data(), 1'234, 1));
  if (group->rank() == 1) count(group->Receive(a.data(), 1'234, 0));
  return sent;
}

TEST_F(StagedCommunicatorTest, BytesSentAreTheHostCommunicators) {
  for (const int size : kSizes) {
    std::vector<std::vector<int64_t>> plain(size), staged(size);
    OnMembers(
        size, [&](int rank) { return Plain(rank, size); },
        [&](Communicator* group) { plain[group->rank()] = SentByEach(group); });
    OnRanks(size, [&](Communicator* group) { staged[group->rank()] = SentByEach(group); });
    EXPECT_EQ(staged, plain);
  }
}

TEST_F(StagedCommunicatorTest, AllMemoryIsReservedWhenTheGroupIsMade) {
  OnRanks(2, [this](Communicator* group) {
    ASSERT_TRUE(group->Barrier().ok());
    EXPECT_EQ(reserved_, 2 * StagingBytes(sizes_, 1));
    std::vector<float> large(10'000);
    ASSERT_TRUE(group->AllReduce(large.data(), large.size(), ReduceType::kF32).ok());
    EXPECT_EQ(reserved_, 2 * StagingBytes(sizes_, 1));
  });
}

TEST_F(StagedCommunicatorTest, OnlyNamedPeersGetMessages) {
  make_ = [](StagingUse, int64_t bytes) { return std::make_unique<LateBuffer>(bytes); };
  OnMembers(
      2,
      [&](int rank) -> absl::StatusOr<std::unique_ptr<Communicator>> {
        GroupOptions options = Options("silent", rank, 2);
        options.message_peers.clear();
        auto host = ConnectGloo(options, &store_);
        if (!host.ok()) return host.status();
        return StageThroughHost(std::move(*host), options, make_, sizes_);
      },
      [](Communicator* group) {
        char byte = 0;
        const absl::Status status = group->Send(&byte, 1, 1 - group->rank());
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(status.message()), testing::HasSubstr("for messages"));
      });
}

TEST_F(StagedCommunicatorTest, SizesThatHoldNothingOfEachMemberAreRefused) {
  sizes_.collective_bytes = 64;
  OnMembers(
      1, [&](int) { return Plain(0, 1); }, [](Communicator*) {});
  auto host = Plain(0, 1);
  ASSERT_TRUE(host.ok());
  const auto group = StageThroughHost(std::move(*host), Options("small", 0, 1), make_, sizes_);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(group.status().message()),
              testing::HasSubstr("collective_bytes: got 64, must be at least 128"));
}

TEST_F(StagedCommunicatorTest, AFailedCopyIsTheCallsFailure) {
  class Failing final : public StagingBuffer {
   public:
    std::byte* data() override { return memory_; }
    absl::Status ToHost(std::byte*, const void*, int64_t) override {
      return absl::InternalError("staging: the copy failed");
    }
    absl::Status ToDevice(void*, const std::byte*, int64_t) override { return absl::OkStatus(); }
    absl::Status Wait() override { return absl::OkStatus(); }

   private:
    std::byte memory_[4096];
  };
  make_ = [](StagingUse, int64_t) { return std::make_unique<Failing>(); };
  OnRanks(1, [](Communicator* group) {
    float value = 1;
    EXPECT_EQ(group->AllGather(&value, &value, 4).message(), "staging: the copy failed");
  });
}

TEST_F(StagedCommunicatorTest, AbortEndsACallThatWaitsForAPeer) {
  OnRanks(2, [](Communicator* group) {
    if (group->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      return;
    }
    std::vector<float> data(1'000);
    absl::Status status;
    std::jthread caller([&] { status = group->AllReduce(data.data(), 1'000, ReduceType::kF32); });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group->Abort();
    caller.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  });
}

}  // namespace
}  // namespace terrace
