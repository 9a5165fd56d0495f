// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/vm.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/vm/member_of_two.h"
#include "tests/unit/worker/vm/tiny_program.h"

namespace terrace {
namespace {

using kernels::Op;
using testing::ElementsAre;
using testing::HasSubstr;

// Takes schedules from a function and keeps what comes out.
class RecordingIo final : public SequenceIo {
 public:
  void LoadBatch(int micro_batch, const BatchTarget& batch) override {
    const std::span<int32_t> tokens = batch.tokens;
    const std::span<int32_t> targets = batch.targets;
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = 100 * micro_batch + static_cast<int32_t>(i);
      targets[i] = tokens[i] + 1;
    }
  }
  void LoadSchedule(std::span<float, 4> schedule) override {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    for (float& value : schedule) value = ++loads;
  }
  void Output(v1::OutputKind, std::span<const float> values) override {
    outputs.emplace_back(values.begin(), values.end());
  }

  std::chrono::milliseconds delay{0};
  float loads = 0;
  std::vector<std::vector<float>> outputs;
};

// A group whose operations do what the test says.
class FakeGroup final : public MemberOfTwo {
 public:
  explicit FakeGroup(std::function<absl::Status(float*, int64_t)> reduce)
      : reduce_(std::move(reduce)) {}
  absl::Status AllReduce(void* data, int64_t n, ReduceType) override {
    return reduce_(static_cast<float*>(data), n);
  }
  void Abort() override {
    if (!aborted_.HasBeenNotified()) aborted_.Notify();  // once a run
  }
  // As a call that waits for a peer.
  absl::Status WaitForAbort() {
    aborted_.WaitForNotification();
    return absl::CancelledError("given up");
  }

 private:
  absl::Notification aborted_;
  std::function<absl::Status(float*, int64_t)> reduce_;
};

class VmTest : public testing::Test {
 protected:
  std::unique_ptr<Vm> Make(TinyProgram* tiny, StateFence* fence = nullptr) {
    arenas_ = tiny->Arenas();
    auto vm = Vm::Create(tiny->program(), {.threads = 1, .arenas = arenas_, .groups = groups_},
                         &clock_, fence);
    EXPECT_TRUE(vm.ok()) << vm.status();
    return vm.ok() ? *std::move(vm) : nullptr;
  }

  SystemClock clock_;
  std::vector<std::byte*> arenas_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  RecordingIo io_;
};

TEST_F(VmTest, UpdatesLastFromOneRunToTheNext) {
  TinyProgram tiny({v1::COMPUTE});
  const uint32_t x = tiny.Buffer(v1::F32, {4}), y = tiny.Buffer(v1::F32, {4});
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = 2.5f}, {{v1::WRITE, x}});
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}});
  tiny.Output(0, v1::STEP_STATS, y);
  auto vm = Make(&tiny);
  for (int run = 1; run <= 3; ++run) {
    ASSERT_TRUE(vm->Run("train", &io_).ok());
    EXPECT_THAT(io_.outputs.back(), testing::Each(2.5f * run));
  }
}

TEST_F(VmTest, ComputeWaitsForASlowInputStream) {
  TinyProgram tiny({v1::COMPUTE, v1::HOST_TO_DEVICE});
  const uint32_t schedule = tiny.Buffer(v1::F32, {4}), y = tiny.Buffer(v1::F32, {4});
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, y}});
  tiny.Input(1, v1::LOAD_SCHEDULE, {schedule});
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, schedule}, {v1::UPDATE, y}})
      ->add_waits(1);
  tiny.Output(0, v1::STEP_STATS, y);
  auto vm = Make(&tiny);
  io_.delay = std::chrono::milliseconds(20);
  ASSERT_TRUE(vm->Run("train", &io_).ok());
  EXPECT_THAT(io_.outputs.back(), ElementsAre(1, 2, 3, 4));
}

// Two streams take turns on one buffer: each link of the chain waits for the other stream. A lost
// wait shows as a wrong sum.
TEST_F(VmTest, AChainAcrossStreamsKeepsItsOrderOverManyRuns) {
  constexpr int kLinks = 50, kRuns = 200;
  TinyProgram tiny({v1::COMPUTE, v1::HOST_COMPUTE, v1::HOST_TO_DEVICE});
  const uint32_t x = tiny.Buffer(v1::F32, {4}), total = tiny.Buffer(v1::F32, {4});
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, total}});
  for (int i = 0; i < kLinks; ++i) {
    const auto last = [&tiny] { return tiny.program().sequences(0).instructions_size() - 1; };
    v1::Instruction* fill =
        tiny.Compute(1, Op::kFill, kernels::FillAttrs{.value = float(i)}, {{v1::WRITE, x}});
    fill->add_waits(fill->id() - 1);
    v1::Instruction* add =
        tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, total}});
    add->add_waits(last() - 1);
  }
  tiny.Output(0, v1::STEP_STATS, total);
  auto vm = Make(&tiny);
  for (int run = 0; run < kRuns; ++run) {
    ASSERT_TRUE(vm->Run("train", &io_).ok());
    ASSERT_THAT(io_.outputs.back(), testing::Each(kLinks * (kLinks - 1) / 2)) << run;
  }
}

TEST_F(VmTest, WaitsThatAnEarlierOneImpliesAreDropped) {
  TinyProgram tiny({v1::COMPUTE, v1::HOST_TO_DEVICE});
  const uint32_t a = tiny.Buffer(v1::F32, {4}), b = tiny.Buffer(v1::F32, {4}),
                 y = tiny.Buffer(v1::F32, {4});
  tiny.Input(1, v1::LOAD_SCHEDULE, {a});
  tiny.Input(1, v1::LOAD_SCHEDULE, {b});
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, b}, {v1::UPDATE, y}})->add_waits(1);
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, a}, {v1::UPDATE, y}})->add_waits(0);
  auto vm = Make(&tiny);
  const PreparedStream& compute = vm->Find("train")->streams[0];
  ASSERT_EQ(compute.instructions[0].waits.size(), 1);
  EXPECT_EQ(compute.instructions[0].waits[0].position, 2);
  EXPECT_TRUE(compute.instructions[1].waits.empty());
}

TEST_F(VmTest, AllReduceRunsOnItsStreamAndComputeWaits) {
  groups_.push_back(std::make_unique<FakeGroup>([](float* data, int64_t n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int64_t i = 0; i < n; ++i) data[i] *= 2;
    return absl::OkStatus();
  }));
  TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE});
  const uint32_t x = tiny.Buffer(v1::F32, {4}), y = tiny.Buffer(v1::F32, {4});
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = 3}, {{v1::WRITE, x}});
  tiny.AllReduce(1, x)->add_waits(0);
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}})->add_waits(1);
  tiny.Output(0, v1::STEP_STATS, y);
  auto vm = Make(&tiny);
  ASSERT_TRUE(vm->Run("train", &io_).ok());
  EXPECT_THAT(io_.outputs.back(), testing::Each(6));
  const SequenceTimes times = Times(*vm->Find("train"));
  EXPECT_GE(times.collective, 0.02);
  EXPECT_GE(times.collective_exposed, 0.015);
  EXPECT_GE(times.total, times.collective);
}

TEST_F(VmTest, ALostPeerEndsTheRunAndNamesTheInstruction) {
  groups_.push_back(std::make_unique<FakeGroup>(
      [](float*, int64_t) { return absl::UnavailableError("peer 1 is gone"); }));
  TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE, v1::HOST_COMPUTE});
  const uint32_t x = tiny.Buffer(v1::F32, {4}), y = tiny.Buffer(v1::F32, {4});
  tiny.AllReduce(1, x);
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}})->add_waits(0);
  tiny.Compute(2, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, y}})->add_waits(1);
  tiny.Output(0, v1::STEP_STATS, y)->add_waits(2);
  auto vm = Make(&tiny);
  for (int run = 0; run < 20; ++run) {
    const absl::Status status = vm->Run("train", &io_);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("instruction 0 (all_reduce): peer 1 is gone"));
    EXPECT_TRUE(io_.outputs.empty());
  }
}

// One stream has lost its peer; another waits for a peer that lives and waits for this rank.
TEST_F(VmTest, AFailureEndsTheCallsOfOtherStreamsIntoTheirGroups) {
  FakeGroup* waiting = nullptr;
  groups_.push_back(std::make_unique<FakeGroup>([](float*, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return absl::UnavailableError("peer 1 is gone");
  }));
  auto second =
      std::make_unique<FakeGroup>([&waiting](float*, int64_t) { return waiting->WaitForAbort(); });
  waiting = second.get();
  groups_.push_back(std::move(second));
  groups_.push_back(nullptr);
  TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE, v1::COLLECTIVE});
  const uint32_t x = tiny.Buffer(v1::F32, {4}), y = tiny.Buffer(v1::F32, {4});
  tiny.AllReduce(1, x);
  tiny.AllReduce(2, y)->mutable_collective()->set_group(1);
  tiny.Output(0, v1::STEP_STATS, y)->add_waits(1);
  auto vm = Make(&tiny);
  const absl::Status status = vm->Run("train", &io_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer 1 is gone"));
}

TEST_F(VmTest, OnlyInstructionsThatWriteStateMeetTheFence) {
  class CountingFence final : public StateFence {
   public:
    void WaitUntilUnread() override { ++calls; }
    int calls = 0;
  } fence;
  TinyProgram tiny({v1::COMPUTE});
  const uint32_t weight = tiny.Buffer(v1::F32, {4}), x = tiny.Buffer(v1::F32, {4});
  tiny.program().add_state()->set_buffer(weight);
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, x}});
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, weight}, {v1::UPDATE, x}});
  tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, weight}});
  auto vm = Make(&tiny, &fence);
  ASSERT_TRUE(vm->Run("train", &io_).ok());
  EXPECT_EQ(fence.calls, 1);
}

TEST_F(VmTest, WarmComputesOnValidIdsAndLeavesGroupsAlone) {
  int reductions = 0;
  groups_.push_back(std::make_unique<FakeGroup>([&reductions](float*, int64_t) {
    ++reductions;
    return absl::OkStatus();
  }));
  TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE});
  const uint32_t tokens = tiny.Buffer(v1::I32, {8}), table = tiny.Buffer(v1::F32, {16, 4});
  const uint32_t x = tiny.Buffer(v1::F32, {8, 4});
  tiny.program().mutable_rules()->set_micro_batch(2);
  tiny.program().mutable_rules()->set_sequence_length(4);
  tiny.Input(0, v1::LOAD_BATCH, {tokens, tokens});
  tiny.Compute(0, Op::kGatherRows, kernels::NoAttrs{},
               {{v1::READ, table}, {v1::READ, tokens}, {v1::WRITE, x}});
  for (int i = 0; i < 5; ++i) tiny.AllReduce(1, x);
  auto vm = Make(&tiny);
  reinterpret_cast<int32_t*>(arenas_[0])[3] = 1 << 30;  // would read far outside the table
  ASSERT_TRUE(vm->Warm().ok());
  EXPECT_EQ(reductions, 0);
  EXPECT_TRUE(io_.outputs.empty());
}

TEST_F(VmTest, UnknownSequenceIsNotFound) {
  TinyProgram tiny({v1::COMPUTE});
  auto vm = Make(&tiny);
  EXPECT_EQ(vm->Run("eval", &io_).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(vm->Has("eval"));
  EXPECT_TRUE(vm->Has("train"));
}

TEST_F(VmTest, ABatchMustHaveTheTokensThatTheRankHolds) {
  TinyProgram tiny({v1::COMPUTE});
  tiny.program().mutable_rules()->set_micro_batch(2);
  tiny.program().mutable_rules()->set_sequence_length(8);
  tiny.program().mutable_grid()->set_context(2);
  const uint32_t tokens = tiny.Buffer(v1::I32, {8}), more = tiny.Buffer(v1::I32, {16});
  tiny.Input(0, v1::LOAD_BATCH, {tokens})->add_operands();  // no targets
  Make(&tiny);
  tiny.Input(0, v1::LOAD_BATCH, {more, more});
  arenas_ = tiny.Arenas();
  const auto vm = Vm::Create(tiny.program(), {.arenas = arenas_}, &clock_, nullptr);
  EXPECT_THAT(std::string(vm.status().message()), HasSubstr("operands i32[8]"));
}

TEST_F(VmTest, ACollectiveThatThisRankLacksIsRefusedBeforeItRuns) {
  groups_.push_back(std::make_unique<FakeGroup>([](float*, int64_t) { return absl::OkStatus(); }));
  TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE});
  const uint32_t x = tiny.Buffer(v1::F32, {4});
  tiny.AllReduce(1, x)->mutable_collective()->set_group(1);
  arenas_ = tiny.Arenas();
  const auto vm =
      Vm::Create(tiny.program(), {.arenas = arenas_, .groups = groups_}, &clock_, nullptr);
  EXPECT_EQ(vm.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(vm.status().message()), HasSubstr("not connected to group 1"));
}

}  // namespace
}  // namespace terrace
