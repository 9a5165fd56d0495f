// A meeting gives what Gloo's rings give, bit for bit, and counts the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/system/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/comm/file_rendezvous.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int kSizes[] = {1, 2, 3, 5};
constexpr int64_t kCounts[] = {1, 3, 1000};

// What each member has before a call and after it.
struct Memory {
  std::vector<std::byte> in, out;
};
using Call = std::function<absl::Status(Communicator*, Memory*)>;
struct Outcome {
  std::vector<std::vector<std::byte>> in, out;
  std::vector<int64_t> sent;
  bool operator==(const Outcome&) const = default;
};

// Bits of numbers of all sizes, as f32 or as pairs of bf16: never infinite.
std::vector<Memory> RandomMemory(int size, int64_t bytes) {
  std::mt19937 random(7);
  std::vector<Memory> memory(size);
  for (Memory& m : memory) {
    m.in.resize(bytes);
    m.out.resize(bytes);
    for (int64_t i = 0; i + 2 <= bytes; i += 2) {
      const auto bits = static_cast<uint16_t>(random() & 0xbfff);
      std::memcpy(m.in.data() + i, &bits, sizeof(bits));
    }
  }
  return memory;
}

Outcome OutcomeOf(std::vector<Memory> memory, std::vector<int64_t> sent) {
  Outcome outcome;
  for (Memory& m : memory) {
    outcome.in.push_back(std::move(m.in));
    outcome.out.push_back(std::move(m.out));
  }
  outcome.sent = std::move(sent);
  return outcome;
}

Outcome OnGloo(int size, int64_t bytes, const Call& call) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "meeting_test";
  std::filesystem::remove_all(folder);
  std::vector<Memory> memory = RandomMemory(size, bytes);
  std::vector<int64_t> sent(size);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        FileRendezvous store(folder);
        auto group = ConnectGloo(
            {.name = "g", .rank = rank, .size = size, .interface_address = "127.0.0.1"}, &store);
        ASSERT_TRUE(group.ok()) << group.status();
        EXPECT_TRUE(call(group->get(), &memory[rank]).ok());
        EXPECT_TRUE((*group)->Barrier().ok());
        sent[rank] = (*group)->bytes_sent();
      });
    }
  }
  std::filesystem::remove_all(folder);
  return OutcomeOf(std::move(memory), std::move(sent));
}

// The members come in a random order.
Outcome InMeeting(int size, int64_t bytes, const Call& call) {
  Meeting meeting("g", size);
  std::vector<Memory> memory = RandomMemory(size, bytes);
  std::vector<int> order(size);
  for (int rank = 0; rank < size; ++rank) order[rank] = rank;
  std::mt19937 random(static_cast<uint32_t>(bytes));
  std::shuffle(order.begin(), order.end(), random);
  const auto done = std::make_unique<bool[]>(size);
  std::vector<std::unique_ptr<Member>> members;
  for (const int rank : order) {
    EXPECT_FALSE(std::count(done.get(), done.get() + size, true)) << "before all are here";
    members.push_back(std::make_unique<Member>(&meeting, rank));
    members.back()->ReportTo(&done[rank]);
    EXPECT_TRUE(call(members.back().get(), &memory[rank]).ok());
  }
  EXPECT_EQ(std::count(done.get(), done.get() + size, true), size);
  std::vector<int64_t> sent;
  for (int rank = 0; rank < size; ++rank) sent.push_back(meeting.bytes_sent(rank));
  return OutcomeOf(std::move(memory), std::move(sent));
}

void ExpectAlike(const std::string& what, int64_t bytes_an_element, const Call& call) {
  for (const int size : kSizes) {
    const int64_t bytes = 1000 * size * bytes_an_element;
    EXPECT_TRUE(InMeeting(size, bytes, call) == OnGloo(size, bytes, call))
        << what << " of " << size;
  }
}

TEST(MeetingTest, SumsAreThoseOfTheRings) {
  for (const auto& [type, bytes] :
       {std::pair(ReduceType::kF32, 4), std::pair(ReduceType::kBF16, 2)}) {
    for (const int64_t count : kCounts) {
      ExpectAlike(absl::StrCat("all-reduce of ", count), bytes,
                  [=](Communicator* group, Memory* m) {
                    return group->AllReduce(m->in.data(), count, type);
                  });
      ExpectAlike(absl::StrCat("reduce-scatter of ", count), bytes,
                  [=](Communicator* group, Memory* m) {
                    return group->ReduceScatter(m->in.data(), m->out.data(), count, type);
                  });
    }
    ExpectAlike("reduce-scatter into its own part", bytes, [=](Communicator* group, Memory* m) {
      return group->ReduceScatter(m->in.data(), m->in.data() + group->rank() * 100 * bytes, 100,
                                  type);
    });
  }
}

TEST(MeetingTest, MovesWhatTheOthersMove) {
  for (const int64_t count : kCounts) {
    ExpectAlike("all-gather", 1, [=](Communicator* group, Memory* m) {
      return group->AllGather(m->in.data(), m->out.data(), count);
    });
    ExpectAlike("all-gather of its own part", 1, [=](Communicator* group, Memory* m) {
      return group->AllGather(m->in.data() + group->rank() * count, m->in.data(), count);
    });
    ExpectAlike("all-to-all", 1, [=](Communicator* group, Memory* m) {
      return group->AllToAll(m->in.data(), m->out.data(), count);
    });
    ExpectAlike("ring shift", 1, [=](Communicator* group, Memory* m) {
      return group->RingShift(m->in.data(), m->out.data(), count);
    });
    ExpectAlike("broadcast", 1, [=](Communicator* group, Memory* m) {
      return group->Broadcast(m->in.data(), count, group->size() - 1);
    });
  }
}

TEST(MeetingTest, AMessageIsThereWhenBothEndsHaveCome) {
  for (const bool sender_first : {true, false}) {
    Meeting meeting("g", 3);
    Member from(&meeting, 0), to(&meeting, 2);
    bool sent = false, received = false;
    const float value = 5;
    float got = 0;
    from.ReportTo(&sent);
    to.ReportTo(&received);
    if (sender_first) from.Send(&value, 4, 2).IgnoreError();
    EXPECT_FALSE(sent);
    ASSERT_TRUE(to.Receive(&got, 4, 0).ok());
    EXPECT_EQ(received, sender_first);
    if (!sender_first) from.Send(&value, 4, 2).IgnoreError();
    EXPECT_TRUE(sent && received);
    EXPECT_EQ(got, 5);
    EXPECT_EQ(meeting.bytes_sent(0), 4);
  }
}

TEST(MeetingTest, WhoAsksForSomethingElseIsRefused) {
  Meeting meeting("g", 2);
  Member a(&meeting, 0), b(&meeting, 1);
  bool a_done = false, b_done = false;
  a.ReportTo(&a_done);
  b.ReportTo(&b_done);
  std::vector<float> x(8), y(8);
  ASSERT_TRUE(a.AllReduce(x.data(), 8, ReduceType::kF32).ok());
  EXPECT_THAT(std::string(a.Barrier().message()), HasSubstr("its last call is not done"));
  EXPECT_THAT(std::string(b.AllReduce(y.data(), 7, ReduceType::kF32).message()),
              HasSubstr("member 1 of 2: calls collective 0 of 7, the others collective 0 of 8"));
  ASSERT_TRUE(a.Send(x.data(), 8, 1).ok());
  EXPECT_THAT(std::string(b.Receive(y.data(), 4, 0).message()), HasSubstr("4 bytes"));
  EXPECT_THAT(std::string(a.Send(x.data(), 8, 0).message()), HasSubstr("must be another one"));
}

}  // namespace
}  // namespace terrace
