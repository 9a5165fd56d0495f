// Arenas that NCCL uses in place, against the fake NCCL (tests/support/fake_nccl.h), which writes
// down what the real one would punish: members that register differently, operands at other places,
// memory that goes before its registration.
//
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/fake_nccl.h"
#include "tests/unit/worker/comm/comm_fixture.h"
#include "worker/comm/nccl_communicator.h"

namespace terrace {
namespace {

using fake_nccl::Call;
using fake_nccl::Fault;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kArenaBytes = 1 << 20;
constexpr int kInvalidArgument = 4;  // ncclInvalidArgument

class NcclRegistrationTest : public testing::Test {
 protected:
  ~NcclRegistrationTest() override {
    fake_nccl::SetFaults(nullptr);
    EXPECT_THAT(fake_nccl::TakeMisuse(), IsEmpty());
    EXPECT_EQ(fake_nccl::CountLive(), fake_nccl::Live()) << "something was not closed";
  }

  struct Rank {
    NcclCommunicator* group;
    std::byte* arena;
    float* floats() const { return reinterpret_cast<float*>(arena); }
  };

  // One thread a member, each with an arena that outlives its group. Why each is slower.
  std::vector<std::string> OnRanks(const std::function<void(const Rank&)>& body) {
    MapRendezvous store;
    std::vector<std::string> because(size_);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        fake_nccl::SetDevice(rank);
        CUstream_st* const stream = fake_nccl::NewStream();
        std::byte* const arena = fake_nccl::NewMemory(kArenaBytes + 64);
        std::fill_n(arena, kArenaBytes + 64, std::byte{0});
        GroupOptions options = {.name = "data.0", .rank = rank, .size = size_};
        options.timeout_ms = 10'000;
        options.one_layout = one_layout_;
        for (int member = 0; member < size_; ++member) {
          options.ranks.push_back(10 + member);
          if (messages_ && member != rank) options.message_peers.push_back(member);
        }
        const NcclMemory memory = {arena + (rank == 1 ? shift_ : 0), kArenaBytes,
                                   rank == 1 ? refusal_ : ""};
        {
          auto group = ConnectNccl(options, &store, stream, &memory);
          ASSERT_TRUE(group.ok()) << group.status();
          because[rank] = (*group)->slower_because();
          EXPECT_EQ((*group)->bytes_sent(), 0) << "connecting does not count";
          body({group->get(), arena});
        }
        fake_nccl::FreeMemory(arena);
        fake_nccl::FreeStream(stream);
      });
    }
    threads.clear();
    return because;
  }

  // Sums and gathers in the arena, at one place.
  static void Use(const Rank& rank) {
    const int n = rank.group->size();
    float* const sum = rank.floats() + 16;
    std::fill_n(sum, 2 * n, 1.0f);
    ASSERT_TRUE(rank.group->AllReduce(sum, 2 * n, ReduceType::kF32).ok());
    EXPECT_EQ(sum[0], n);
    EXPECT_EQ(sum[2 * n - 1], n);
    ASSERT_TRUE(rank.group->AllGather(sum + rank.group->rank(), sum, sizeof(float)).ok());
  }

  static void OnRegister(int rank, Fault fault) {
    fake_nccl::SetFaults([=](const Call& call) {
      return call.kind == "register" && call.rank == rank ? fault : Fault{};
    });
  }

  int size_ = 3;
  bool one_layout_ = true, messages_ = false;
  int64_t shift_ = 0;    // of the second member's arena
  std::string refusal_;  // of the same
};

TEST_F(NcclRegistrationTest, TheArenaIsRegisteredWithEveryChannelAndGoesAfterIt) {
  messages_ = true;
  const auto because = OnRanks([this](const Rank& rank) {
    ASSERT_TRUE(rank.group->Barrier().ok());
    // Of each member: collectives, and a channel for each direction and peer.
    EXPECT_EQ(fake_nccl::CountLive().registrations, size_ * (1 + 2 * (size_ - 1)));
    Use(rank);
    ASSERT_TRUE(rank.group->Barrier().ok());
  });
  EXPECT_THAT(because, Each(IsEmpty()));
}

TEST_F(NcclRegistrationTest, MemoryThatNcclMustNotUseIsNotRegisteredAndTheReasonIsNamed) {
  refusal_ = "its pages are several allocations";
  const auto because = OnRanks([](const Rank& rank) {
    EXPECT_EQ(fake_nccl::CountLive().registrations, 0);
    Use(rank);
    ASSERT_TRUE(rank.group->Barrier().ok());
  });
  EXPECT_EQ(because[1], refusal_);
  EXPECT_THAT(because[0], HasSubstr("rank 11 cannot register its own"));
}

TEST_F(NcclRegistrationTest, PeersMapEachOthersMemoryWhileConnecting) {
  messages_ = true;
  size_ = 2;
  fake_nccl::TakeCalls();
  OnRanks([](const Rank&) {});
  const std::vector<std::string> calls = fake_nccl::TakeCalls();
  // What was registered is agreed on, then gathered and sent; the rest is as without an arena.
  EXPECT_THAT(calls, testing::UnorderedElementsAre("all-gather", "all-gather", "messages",
                                                   "messages", "messages", "messages", "messages",
                                                   "messages", "reduce-scatter", "all-gather",
                                                   "all-reduce", "broadcast", "reduce-scatter"));
}

// Members of other stages have other programs: their operands lie elsewhere.
TEST_F(NcclRegistrationTest, WhereProgramsDifferOnlyMessagesAreRegistered) {
  messages_ = true;
  one_layout_ = false;
  size_ = 2;
  const auto because = OnRanks([](const Rank& rank) {
    ASSERT_TRUE(rank.group->Barrier().ok());
    EXPECT_EQ(fake_nccl::CountLive().registrations, 2 * 2);
    float* const own = rank.floats() + 100 * rank.group->rank();
    own[0] = own[1] = 1;
    ASSERT_TRUE(rank.group->AllReduce(own, 2, ReduceType::kF32).ok());
    EXPECT_EQ(own[1], 2);
    const absl::Status message =
        rank.group->rank() == 0 ? rank.group->Send(own, 8, 1) : rank.group->Receive(own + 7, 8, 0);
    ASSERT_TRUE(message.ok()) << message;
    ASSERT_TRUE(rank.group->Barrier().ok());
  });
  EXPECT_THAT(because, Each(IsEmpty()));
}

TEST_F(NcclRegistrationTest, WhereOneMemberIsRefusedNobodyRegistersAndAllGoOn) {
  messages_ = true;
  OnRegister(1, {.error = kInvalidArgument});
  const auto because = OnRanks([](const Rank& rank) {
    ASSERT_TRUE(rank.group->Barrier().ok());
    EXPECT_EQ(fake_nccl::CountLive().registrations, 0);
    Use(rank);
    ASSERT_TRUE(rank.group->Barrier().ok());
  });
  // Which channels member 1 of two is depends on the direction: all members are refused one.
  for (const std::string& reason : because) {
    EXPECT_THAT(reason, AllOf(HasSubstr("NCCL refuses it: an error of the fake NCCL"),
                              HasSubstr("the last line of its log")));
  }
}

TEST_F(NcclRegistrationTest, TheOthersNameTheMemberThatCannot) {
  OnRegister(1, {.skips = true});
  const auto because = OnRanks(Use);
  EXPECT_THAT(because[1], HasSubstr("NCCL is set to register nothing (NCCL_LOCAL_REGISTER)"));
  EXPECT_EQ(because[0], "rank 11 cannot register its own");
  EXPECT_EQ(because[2], because[0]);
}

TEST_F(NcclRegistrationTest, AnArenaThatBeginsInsideAPageIsNotRegistered) {
  shift_ = 64;
  const auto because = OnRanks(Use);
  EXPECT_THAT(because[1], HasSubstr("it does not begin on a page of 4096 bytes"));
  EXPECT_EQ(because[0], "rank 11 cannot register its own");
}

TEST_F(NcclRegistrationTest, AGroupThatIsGivenUpLeavesNothingRegistered) {
  size_ = 2;
  OnRanks([](const Rank& rank) {
    ASSERT_TRUE(rank.group->Barrier().ok());
    rank.group->Abort();
  });
}

// The fake is as strict as these tests rely on.
TEST_F(NcclRegistrationTest, OperandsElsewhereThanTheOtherMembersAreNoticed) {
  size_ = 2;
  OnRanks([](const Rank& rank) {
    float* const sum = rank.floats() + 100 * rank.group->rank();
    ASSERT_TRUE(rank.group->Broadcast(sum, 8, 0).ok());
  });
  EXPECT_THAT(fake_nccl::TakeMisuse(),
              testing::ElementsAre(HasSubstr("broadcast with memory registered elsewhere")));
}

}  // namespace
}  // namespace terrace
