// Graphs that hold collectives, on the device that the host plays, with groups whose other member
// has the same data.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kernels/cuda/queue.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/worker/rank/cuda/graph_orders.h"
#include "tests/unit/worker/rank/cuda/passed_on_backend.h"
#include "tests/unit/worker/rank/member_of_two.h"
#include "tests/unit/worker/rank/tiny_program.h"
#include "worker/rank/cuda_queue.h"
#include "worker/rank/memory_report.h"
#include "worker/rank/program_memory.h"
#include "worker/rank/vm.h"

namespace terrace {
namespace {

using kernels::Op;
using simt::DeviceOptions;
using testing::HasSubstr;

constexpr uint32_t kCompute = 0, kFirst = 1, kSecond = 2;

// What all groups of a rank share.
struct Shared {
  CUstream_st* stream = nullptr;
  std::vector<std::string> calls;  // in the order in which they were put on the stream
  bool staged = false;             // a thread of the host has a part in every call
  bool capture_fails = false;
  bool breaks_in_capture = false;
  absl::Status broken;  // as all groups of a rank are then
  absl::Status lost;    // what CheckRun says
  int aborted = 0, runs_begun = 0;
  std::chrono::milliseconds takes{0};  // each sum
  int64_t one_by_one_ns = 0;           // what BeginRun was last told
};

// A sum doubles what it finds.
class TwinGroup final : public MemberOfTwo, public GraphCollectives {
 public:
  TwinGroup(std::string name, Shared* shared) : name_(std::move(name)), shared_(*shared) {}
  absl::Status AllReduce(void* data, int64_t n, ReduceType) override {
    if (captures_ && shared_.breaks_in_capture)
      shared_.broken = absl::InternalError("group data.0: rank 0: all-reduce failed: NCCL");
    if (!shared_.broken.ok()) return shared_.broken;
    shared_.calls.push_back(name_);
    simt::Enqueue(shared_.stream, [=, takes = shared_.takes] {
      std::this_thread::sleep_for(takes);
      for (int64_t i = 0; i < n; ++i) static_cast<float*>(data)[i] *= 2;
    });
    if (captures_) {
      captured_bytes_ += n * 4;
      return absl::OkStatus();
    }
    cudaStreamSynchronize(shared_.stream);
    bytes_sent_ += n * 4;
    return absl::OkStatus();
  }
  void Abort() override { ++shared_.aborted; }
  int64_t bytes_sent() const override { return bytes_sent_; }

  GraphCollectives* graph_collectives() override { return shared_.staged ? nullptr : this; }
  absl::Status BeginCapture() override {
    EXPECT_FALSE(std::exchange(captures_, true));
    captured_bytes_ = 0;
    return shared_.capture_fails ? absl::InternalError("NCCL says no") : absl::OkStatus();
  }
  absl::StatusOr<int64_t> EndCapture() override {
    EXPECT_TRUE(std::exchange(captures_, false));
    if (!shared_.broken.ok()) return shared_.broken;
    return captured_bytes_;
  }
  absl::Status BeginRun(int64_t one_by_one_ns) override {
    ++shared_.runs_begun;
    shared_.one_by_one_ns = one_by_one_ns;
    return absl::OkStatus();
  }
  absl::Status CheckRun() override { return shared_.lost; }
  void EndRun(int64_t sent_bytes) override { bytes_sent_ += sent_bytes; }

 private:
  const std::string name_;
  Shared& shared_;
  bool captures_ = false;
  int64_t captured_bytes_ = 0, bytes_sent_ = 0;
};

// The CUDA backend, with a stream of collectives.
class WithCollectives final : public PassedOnBackend {
 public:
  WithCollectives(std::unique_ptr<Backend> backend, const kernels::cuda::Device& device)
      : PassedOnBackend(std::move(backend)), device_(device) {
    EXPECT_TRUE(kernels::cuda::Queue::Create(&queue_).ok());
  }
  CUstream_st* stream() const { return queue_->stream(); }
  std::unique_ptr<DeviceQueue> NewCollectiveQueue() override {
    return std::make_unique<CudaQueue>(device_, kernels::cuda::Queue::On(queue_->stream()));
  }

 private:
  const kernels::cuda::Device& device_;
  std::unique_ptr<kernels::cuda::Queue> queue_;
};

class KeptIo final : public SequenceIo {
 public:
  void LoadBatch(int, std::span<int32_t>, std::span<int32_t>) override {}
  void LoadSchedule(std::span<float, 4> schedule) override {
    for (float& value : schedule) value = ++loaded;
  }
  void LoadPrompt(std::span<int32_t>, std::span<int32_t>) override {}
  void Output(v1::OutputKind, std::span<const float> values) override {
    total.assign(values.begin(), values.end());
  }
  float loaded = 0;
  std::vector<float> total;
};

// An input is summed by one group, its double by another, and both are added up; the first group
// sums the result again.
class Rank {
 public:
  // `with_eval`: a second sequence of the same.
  explicit Rank(bool with_eval = false) : tiny_({v1::COMPUTE, v1::COLLECTIVE, v1::COLLECTIVE}) {
    const uint32_t first = tiny_.Group("data", {v1::DATA_REPLICA}),
                   second = tiny_.Group("tensor", {v1::TENSOR});
    const uint32_t x = tiny_.Buffer(v1::F32, {4}), y = tiny_.Buffer(v1::F32, {4});
    const auto* load = tiny_.Input(kCompute, v1::LOAD_SCHEDULE, {x});
    const auto sum = [&](uint32_t stream, uint32_t group, uint32_t buffer,
                         const v1::Instruction* after) {
      v1::Instruction* one = tiny_.AllReduce(stream, buffer);
      one->mutable_collective()->set_group(group);
      one->add_waits(after->id());
      return one;
    };
    const auto* sum_x = sum(kFirst, first, x, load);
    tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{.value = 1}, {{v1::WRITE, y}});
    auto* add =
        tiny_.Compute(kCompute, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}});
    add->add_waits(sum_x->id());
    const auto* sum_y = sum(kSecond, second, y, add);
    auto* again =
        tiny_.Compute(kCompute, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}});
    again->add_waits(sum_y->id());
    const auto* last = sum(kFirst, first, y, again);
    tiny_.Output(kCompute, v1::LOSS_TOTAL, y)->add_waits(last->id());
    tiny_.program().set_device("cuda");
    if (!with_eval) return;
    v1::Sequence eval = tiny_.program().sequences(0);
    eval.set_name("eval");
    *tiny_.program().add_sequences() = std::move(eval);
  }
  ~Rank() { vm_.reset(), memory_.reset(); }

  absl::Status Open() {
    if (!kernels::cuda::Device::Open(0, &device_).ok()) return absl::InternalError("no device");
    auto backend = OpenBackend("cuda", 0);
    if (!backend.ok()) return backend.status();
    backend_ = std::make_unique<WithCollectives>(*std::move(backend), *device_);
    shared.stream = backend_->stream();
    groups_.push_back(std::make_unique<TwinGroup>("data", &shared));
    groups_.push_back(std::make_unique<TwinGroup>("tensor", &shared));
    auto memory = ProgramMemory::Reserve(tiny_.program(), MemoryOptions{.backend = backend_.get()});
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    auto vm =
        Vm::Create(tiny_.program(),
                   {.arenas = memory_->arenas(), .groups = groups_, .backend = backend_.get()},
                   &clock_, nullptr);
    if (!vm.ok()) return vm.status();
    vm_ = *std::move(vm);
    return vm_->Warm();
  }

  absl::Status Run(const char* sequence = "train") { return vm_->Run(sequence, &io_); }
  bool RunIsRight(const char* sequence = "train") {
    const float first = io_.loaded;
    if (!Run(sequence).ok()) return false;
    std::vector<float> want;
    for (int i = 1; i <= 4; ++i) {
      const float x = 2 * (first + static_cast<float>(i));
      want.push_back(2 * (2 * (1 + x) + x));
    }
    return io_.total == want;
  }
  absl::StatusOr<int64_t> External(Agreement* agreement) {
    return MeasureExternal(tiny_.program(), *memory_, nullptr, backend_.get(), vm_.get(),
                           agreement);
  }

  Shared shared;
  Vm& vm() { return *vm_; }
  int64_t bytes_sent(int group) const { return groups_[group]->bytes_sent(); }

 private:
  TinyProgram tiny_;
  SystemClock clock_;
  KeptIo io_;
  std::unique_ptr<kernels::cuda::Device> device_;
  std::unique_ptr<WithCollectives> backend_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::optional<ProgramMemory> memory_;
  std::unique_ptr<Vm> vm_;
};

void ExpectRight(const DeviceOptions& options) {
  simt::ResetDevice(options);
  Rank rank;
  ASSERT_TRUE(rank.Open().ok());
  const std::vector<std::string> order = {"data", "tensor", "data"};
  EXPECT_EQ(std::exchange(rank.shared.calls, {}), order) << "captured in the order of the list";
  for (int run = 0; run < 4; ++run) EXPECT_TRUE(rank.RunIsRight()) << run;
  EXPECT_EQ(rank.vm().graph_runs(), 3) << "all but the first";
  EXPECT_EQ(rank.shared.calls, order) << "and called once more";
  EXPECT_EQ(rank.shared.runs_begun, 2 * 3);
  EXPECT_EQ(rank.bytes_sent(0), 4 * 2 * 16) << "runs, sums, bytes";
  EXPECT_EQ(rank.bytes_sent(1), 4 * 16);
}

TEST(GraphCollectivesTest, TheyArePartOfTheGraphInWhateverOrderTheDeviceWorks) {
  InAllOrders(ExpectRight);
}

TEST(GraphCollectivesTest, EdgesToAndFromCollectivesAreNeeded) {
  simt::ResetDevice({});
  int64_t edges = 0;
  {
    Rank rank;
    ASSERT_TRUE(rank.Open().ok());
    edges = simt::CountsOfDevice().waits;
  }
  ASSERT_EQ(edges, 2 + 6 + 2) << "both streams begin, each sum waits and is waited for, both end";
  int noticed = 0;
  for (int64_t edge = 1; edge <= edges; ++edge) noticed += NoticesWithout<Rank>(edge) ? 1 : 0;
  // What begins waits for computation anyway, and the last of each is waited for anyway.
  EXPECT_EQ(noticed, 6);
}

// Whatever a group allows a call: a step of many takes longer.
TEST(GraphCollectivesTest, GroupsAreToldHowLongTheStepTookOneByOne) {
  simt::ResetDevice({});
  Rank rank;
  rank.shared.takes = std::chrono::milliseconds(30);
  ASSERT_TRUE(rank.Open().ok());
  ASSERT_TRUE(rank.RunIsRight());
  EXPECT_EQ(rank.shared.runs_begun, 0);
  ASSERT_TRUE(rank.RunIsRight());
  EXPECT_EQ(rank.shared.runs_begun, 2);
  EXPECT_GE(rank.shared.one_by_one_ns, 3 * 30'000'000) << "three sums";
}

TEST(GraphCollectivesTest, ALostMemberEndsTheRunAndTheGroups) {
  simt::ResetDevice({});
  Rank rank;
  ASSERT_TRUE(rank.Open().ok());
  ASSERT_TRUE(rank.RunIsRight());
  rank.shared.lost = absl::UnavailableError("group data.0: rank 1: a member is lost");
  const absl::Status status = rank.Run();
  EXPECT_EQ(rank.vm().graph_runs(), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("train, launched as one graph: group data.0: rank 1: a member is lost"));
  EXPECT_GE(rank.shared.aborted, 2) << "every group of the rank";
}

TEST(GraphCollectivesTest, WhatNcclDoesNotCaptureIsLaunchedOneByOne) {
  simt::ResetDevice({});
  Rank rank;
  rank.shared.capture_fails = true;
  ASSERT_TRUE(rank.Open().ok());
  EXPECT_EQ(rank.vm().LacksCollectiveGraphs(), std::vector<bool>{true});
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight()) << run;
  EXPECT_EQ(rank.vm().graph_runs(), 0);
}

// Going on one by one would fail at the first of its calls.
TEST(GraphCollectivesTest, AGroupThatBreaksWhileItIsCapturedEndsTheRankWithTheWayOut) {
  simt::ResetDevice({});
  Rank rank;
  rank.shared.breaks_in_capture = true;
  const absl::Status status = rank.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("train broke a group when it was made a graph: group data.0: rank 0: "
                        "all-reduce failed: NCCL"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("TERRACE_CUDA_GRAPHS=0"));
}

// A job's other rank says that it has no room for any graph, or which it lacks.
class OtherSays final : public MemberOfTwo {
 public:
  explicit OtherSays(std::vector<std::vector<float>> says) : says_(std::move(says)) {}
  absl::Status AllReduce(void* data, int64_t n, ReduceType) override {
    auto* const values = static_cast<float*>(data);
    heard.emplace_back(values, values + n);
    EXPECT_EQ(says_.at(heard.size() - 1).size(), n);
    for (int64_t i = 0; i < n; ++i) values[i] += says_[heard.size() - 1][i];
    return absl::OkStatus();
  }

  std::vector<std::vector<float>> heard;  // from this rank

 private:
  const std::vector<std::vector<float>> says_;
};

// How many of three executions of each sequence are graphs after this rank, with `shared`, has
// heard that the other has no room, or lacks the graphs of train or eval.
struct GraphRuns {
  int64_t train = 0, eval = 0;
  bool operator==(const GraphRuns&) const = default;
};
GraphRuns RunsAfter(std::vector<std::vector<float>> says) {
  simt::ResetDevice({});
  Rank rank(/*with_eval=*/true);
  EXPECT_TRUE(rank.Open().ok());
  OtherSays other(std::move(says));
  Agreement agreement(&other);
  EXPECT_TRUE(rank.External(&agreement).ok());
  EXPECT_EQ(other.heard, (std::vector<std::vector<float>>{{0}, {0, 0}})) << "it lacks nothing";
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight("train")) << run;
  const int64_t train = rank.vm().graph_runs();
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight("eval")) << run;
  return {train, rank.vm().graph_runs() - train};
}

TEST(GraphCollectivesTest, AllRanksDropWhatOneOfThemCannotHave) {
  EXPECT_EQ(RunsAfter({{0}, {0, 0}}), (GraphRuns{2, 2})) << "all but the first";
  EXPECT_EQ(RunsAfter({{1}, {0, 0}}), (GraphRuns{0, 0}));
  EXPECT_EQ(RunsAfter({{0}, {1, 0}}), (GraphRuns{0, 2}));
  EXPECT_EQ(RunsAfter({{0}, {0, 1}}), (GraphRuns{2, 0}));
}

// The program is that of ranks whose groups are over NCCL: they cannot know.
TEST(GraphCollectivesTest, ARankWhoseGroupsAreStagedTellsTheOthersThatItHasNoGraphs) {
  simt::ResetDevice({});
  Rank rank(/*with_eval=*/true);
  rank.shared.staged = true;
  ASSERT_TRUE(rank.Open().ok());
  OtherSays other({{0}, {0, 0}});
  Agreement agreement(&other);
  ASSERT_TRUE(rank.External(&agreement).ok());
  EXPECT_EQ(other.heard, (std::vector<std::vector<float>>{{0}, {1, 1}}));
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(rank.RunIsRight()) << run;
  EXPECT_EQ(rank.vm().graph_runs(), 0);
}

}  // namespace
}  // namespace terrace
