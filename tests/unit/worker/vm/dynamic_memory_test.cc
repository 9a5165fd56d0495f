// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/dynamic_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/program/caching_need.h"
#include "worker/memory/caching_segments.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;

// Mapped memory up to so many bytes; a test may look at what is taken.
class BoundedSegments final : public SegmentSource {
 public:
  struct Account {
    int64_t left_bytes = std::numeric_limits<int64_t>::max();
    int64_t taken_bytes = 0;
    int reservations = 0;
  };
  explicit BoundedSegments(Account* account) : account_(account) {}
  absl::StatusOr<std::byte*> Reserve(int64_t bytes) override {
    if (bytes > account_->left_bytes) return absl::ResourceExhaustedError("the machine is full");
    auto data = memory_.Reserve(bytes);
    if (!data.ok()) return data;
    account_->left_bytes -= bytes;
    account_->taken_bytes += bytes;
    ++account_->reservations;
    sizes_[*data] = bytes;
    return data;
  }
  void Release(std::byte* data) override {
    account_->left_bytes += sizes_.at(data);
    account_->taken_bytes -= sizes_.at(data);
    memory_.Release(data);
  }

 private:
  Account* const account_;
  MappedSegments memory_;
  std::map<std::byte*, int64_t> sizes_;
};

// Programs whose instructions do nothing: what is tested is what they are given.
class DynamicMemoryTest : public testing::Test {
 protected:
  DynamicMemoryTest() {
    program_.set_allocator("caching");
    program_.add_arenas()->set_tier(v1::DEVICE);
    program_.mutable_arenas(0)->set_bytes(1024);
    program_.add_streams()->set_kind(v1::COMPUTE);
    program_.add_streams()->set_kind(v1::DEVICE_TO_HOST);
    Buffer("weights", 1000, v1::PERSISTENT);
  }

  uint32_t Buffer(const std::string& name, int64_t bytes, v1::Lifetime lifetime = v1::STEP) {
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_name(name);
    buffer->set_lifetime(lifetime);
    buffer->set_bytes(bytes);
    return buffer->id();
  }
  int Sequence(const std::string& name) {
    program_.add_sequences()->set_name(name);
    return program_.sequences_size() - 1;
  }
  void Add(int sequence, uint32_t stream, std::vector<uint32_t> buffers,
           std::vector<uint32_t> waits = {}) {
    v1::Sequence* of = program_.mutable_sequences(sequence);
    v1::Instruction* instruction = of->add_instructions();
    instruction->set_id(of->instructions_size() - 1);
    instruction->set_stream(stream);
    instruction->set_text("work");
    for (const uint32_t buffer : buffers) {
      v1::Operand* operand = instruction->add_operands();
      operand->set_access(v1::UPDATE);
      operand->set_buffer(buffer);
      operand->set_offset(256);
    }
    for (const uint32_t wait : waits) instruction->add_waits(wait);
  }

  absl::StatusOr<std::unique_ptr<DynamicMemory>> Create(int64_t limit_bytes = 0) {
    auto memory = DynamicMemory::Create(
        program_,
        {.limit_bytes = limit_bytes, .source = std::make_unique<BoundedSegments>(&account_)});
    if (!memory.ok()) return memory;
    prepared_.clear();
    prepared_.resize(program_.sequences_size());
    for (int s = 0; s < program_.sequences_size(); ++s) {
      prepared_[s].streams.resize(2);
      for (const v1::Instruction& source : program_.sequences(s).instructions()) {
        PreparedInstruction& instruction =
            prepared_[s].streams[source.stream()].instructions.emplace_back();
        instruction.source = &source;
        instruction.operands.resize(source.operands_size());
      }
    }
    for (int s = 0; s < program_.sequences_size(); ++s) (*memory)->Bind(s, &prepared_[s]);
    return memory;
  }
  // Executes the sequence stream by stream, the later streams first: legal, and far from list
  // order.
  absl::Status Run(DynamicMemory* memory, int sequence) {
    memory->Begin(sequence);
    absl::Status status;
    for (int stream = 1; stream >= 0; --stream) {
      for (const PreparedInstruction& instruction :
           prepared_[sequence].streams[stream].instructions) {
        status.Update(prepared_[sequence].launcher->Launch(instruction));
        for (const kernels::TensorView& view : instruction.operands) {
          if (status.ok()) *static_cast<char*>(view.data) = 1;  // it is memory
        }
      }
    }
    memory->End();
    return status;
  }

  v1::Program program_;
  std::vector<PreparedSequence> prepared_;
  BoundedSegments::Account account_;
};

TEST_F(DynamicMemoryTest, ReservesWhatThePlanPromisesBeforeTheFirstStepAndNothingAfter) {
  const uint32_t a = Buffer("a", 3 * kMib), b = Buffer("b", 30 * kMib), c = Buffer("c", 1000);
  const int train = Sequence("train");
  Add(train, 0, {a});
  Add(train, 1, {a, c}, {0});
  Add(train, 0, {b}, {1});
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(account_.taken_bytes, SegmentBytesNeeded(program_));
  EXPECT_EQ((*memory)->reserved_bytes(), SegmentBytesNeeded(program_));
  const int reservations = account_.reservations;
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(Run(memory->get(), train).ok());
  EXPECT_EQ(account_.reservations, reservations);
  const v1::AllocatorStats stats = (*memory)->stats();
  EXPECT_EQ(stats.mode(), "caching");
  EXPECT_EQ(stats.reserved_bytes(), 1024 + SegmentBytesNeeded(program_));
  EXPECT_EQ(stats.requested_bytes(), 1000 + 30 * kMib);
  EXPECT_EQ(stats.step_peak_bytes(), 1000 + 30 * kMib);
  EXPECT_EQ(stats.retries() + stats.ooms(), 0);
}

TEST_F(DynamicMemoryTest, AddressesAreThoseOfTheBlockAndTheOffsetIn) {
  const uint32_t a = Buffer("a", 5000);
  const int train = Sequence("train");
  Add(train, 0, {a});
  Add(train, 1, {a}, {0});
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(prepared_[0].streams[0].instructions[0].operands[0].data, nullptr);
  ASSERT_TRUE(Run(memory->get(), train).ok());
  void* const first = prepared_[0].streams[0].instructions[0].operands[0].data;
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 512, 256u);
  EXPECT_EQ(prepared_[0].streams[1].instructions[0].operands[0].data, first);
}

TEST_F(DynamicMemoryTest, ALimitThatIsHitNamesAllThatMatters) {
  const uint32_t a = Buffer("kept", 12 * kMib), b = Buffer("mb0.mlp", 18 * kMib);
  const int train = Sequence("train");
  Add(train, 0, {a});
  Add(train, 0, {a, b});
  const auto memory = Create(/*limit_bytes=*/20 * kMib);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()),
              AllOf(HasSubstr("instruction 1 (work): buffer 'mb0.mlp'"),
                    HasSubstr("18874368 bytes to stream 0"), HasSubstr("limit of 20971520"),
                    HasSubstr("12582912 bytes reserved"), HasSubstr("fragmentation"),
                    HasSubstr("layout.allocator planned")));
  EXPECT_EQ(account_.taken_bytes, 0);
}

TEST_F(DynamicMemoryTest, AMachineThatIsFullIsSaidBeforeTheFirstStep) {
  account_.left_bytes = 10 * kMib;
  const uint32_t a = Buffer("a", 12 * kMib);
  Add(Sequence("train"), 0, {a});
  const auto memory = Create();
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("the machine is full"));
}

// Together they take 60 MiB, and after that no order of them takes more.
TEST_F(DynamicMemoryTest, NoOrderOfSequencesReservesMore) {
  const uint32_t a = Buffer("a", 24 * kMib), b = Buffer("b", 12 * kMib), c = Buffer("c", 24 * kMib);
  const int train = Sequence("train"), eval = Sequence("eval");
  Add(train, 0, {a});
  Add(train, 1, {b});
  Add(eval, 1, {c});
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(account_.taken_bytes, 60 * kMib);
  const int reservations = account_.reservations;
  for (const int sequence : {eval, eval, train, eval, train, train})
    ASSERT_TRUE(Run(memory->get(), sequence).ok());
  EXPECT_EQ(account_.reservations, reservations);
}

TEST_F(DynamicMemoryTest, WarmingTakesNoMoreThanTheStepsAndLeavesNoAddress) {
  const uint32_t a = Buffer("a", 24 * kMib), b = Buffer("b", 1000);
  const int train = Sequence("train");
  Add(train, 0, {a, b, a});
  Add(train, 0, {b});
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE((*memory)->BeginWarm().ok());
  EXPECT_LE(account_.taken_bytes, (*memory)->limit_bytes());
  const std::vector<kernels::TensorView>& first = prepared_[0].streams[0].instructions[0].operands;
  EXPECT_EQ(first[0].data, first[2].data);
  EXPECT_GE(std::abs(static_cast<char*>(first[0].data) - static_cast<char*>(first[1].data)), 1000);
  ASSERT_TRUE((*memory)->EndWarm().ok());
  EXPECT_EQ(first[0].data, nullptr);
  EXPECT_EQ(account_.taken_bytes, (*memory)->limit_bytes());
  ASSERT_TRUE(Run(memory->get(), train).ok());
}

TEST_F(DynamicMemoryTest, ARunThatFailsHalfWayLeavesNothingHeld) {
  const uint32_t a = Buffer("a", 24 * kMib), b = Buffer("b", 12 * kMib);
  const int train = Sequence("train");
  Add(train, 0, {a});
  Add(train, 0, {a, b});
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  (*memory)->Begin(train);
  ASSERT_TRUE(prepared_[train].launcher->Launch(prepared_[train].streams[0].instructions[0]).ok());
  (*memory)->End();
  ASSERT_TRUE(Run(memory->get(), train).ok());
  EXPECT_EQ((*memory)->stats().requested_bytes(), 1000 + 36 * kMib);
}

}  // namespace
}  // namespace terrace
