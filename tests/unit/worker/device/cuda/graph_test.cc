// Sequences captured as graphs, on a device that executes a graph in any order that its edges allow
// and breaks captures of what CUDA cannot capture.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/worker/device/cuda/graph_orders.h"
#include "tests/unit/worker/vm/tiny_program.h"
#include "worker/rank/memory_report.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/sequence_times.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

using kernels::Op;
using simt::DeviceOptions;
using testing::HasSubstr;

constexpr uint32_t kCompute = 0, kToDevice = 1, kToHost = 2;
constexpr int kLinks = 3;

// Inputs that change from run to run, and what came out of the last one.
class LoopIo final : public SequenceIo {
 public:
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4> schedule) override {
    std::this_thread::sleep_for(std::exchange(delay, std::chrono::milliseconds(0)));
    for (float& value : schedule) value = ++loaded;
  }
  void Output(v1::OutputKind kind, std::span<const float> values) override {
    (kind == v1::LOGITS ? total : inputs).assign(values.begin(), values.end());
  }

  std::chrono::milliseconds delay{0};  // of the next load
  float loaded = 0;
  std::vector<float> total, inputs;
};

class Fence final : public StateFence {
 public:
  void WaitUntilUnread() override { unread = true; }
  bool IsUnread() const override { return unread; }
  int64_t reads() const override { return begun; }
  bool unread = true;
  int64_t begun = 0;
};

// Values that leave for the host and come back, on three queues, and an input that is added up. The
// last copy to the host is waited for by nobody but the end.
class Loop {
 public:
  explicit Loop(StateFence* fence = nullptr)
      : fence_(fence), tiny_({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::DEVICE_TO_HOST}) {
    const uint32_t x = tiny_.Buffer(v1::F32, {64}), y = tiny_.Buffer(v1::F32, {64}),
                   total = tiny_.Buffer(v1::F32, {64}), schedule = tiny_.Buffer(v1::F32, {4}),
                   inputs = tiny_.Buffer(v1::F32, {4}),
                   host = tiny_.Buffer(v1::F32, {64}, v1::HOST);
    host_total_ = tiny_.Buffer(v1::F32, {64}, v1::HOST);
    const auto* load = tiny_.Input(kToDevice, v1::LOAD_SCHEDULE, {schedule});
    tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, total}});
    tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, inputs}});
    for (int i = 1; i <= kLinks; ++i) {
      const auto* fill = tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{.value = ValueOf(i)},
                                       {{v1::WRITE, x}});
      v1::Instruction* down = tiny_.Copy(kToHost, v1::TO_HOST, {{x, host}});
      down->add_waits(fill->id());
      v1::Instruction* up = tiny_.Copy(kToDevice, v1::TO_DEVICE, {{host, y}});
      up->add_waits(down->id());
      tiny_.Compute(kCompute, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, y}, {v1::UPDATE, total}})
          ->add_waits(up->id());
    }
    tiny_
        .Compute(kCompute, Op::kAdd, kernels::NoAttrs{},
                 {{v1::READ, schedule}, {v1::UPDATE, inputs}})
        ->add_waits(load->id());
    v1::Instruction* out = tiny_.Output(kCompute, v1::LOGITS, total);
    tiny_.Output(kCompute, v1::LOSS_TOTAL, inputs);
    tiny_.Copy(kToHost, v1::TO_HOST, {{total, host_total_}})->add_waits(out->id());
    tiny_.program().add_state()->set_buffer(total);  // checkpoints are written from it
    tiny_.program().set_device("cuda");
  }
  ~Loop() { vm_.reset(), memory_.reset(); }

  absl::Status Open() {
    auto backend = OpenBackend("cuda", 0);
    if (!backend.ok()) return backend.status();
    backend_ = *std::move(backend);
    auto memory = ProgramMemory::Reserve(tiny_.program(), MemoryOptions{.backend = backend_.get()});
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    auto vm = Vm::Create(tiny_.program(), {.arenas = memory_->arenas(), .backend = backend_.get()},
                         &clock_, fence_);
    if (!vm.ok()) return vm.status();
    vm_ = *std::move(vm);
    return vm_->Warm();
  }

  // Powers, so that no two mistakes make up for each other.
  static float ValueOf(int link) { return static_cast<float>(1 << (3 * link)); }

  bool RunIsRight(bool one_by_one = false) {
    float sum = 0;
    for (int i = 1; i <= kLinks; ++i) sum += ValueOf(i);
    const std::vector<float> want(64, sum);
    const float first = io_.loaded;
    if (!vm_->Run("train", &io_, one_by_one).ok()) return false;
    std::vector<float> host_total(64);
    const v1::Buffer& buffer = tiny_.program().buffers(static_cast<int>(host_total_));
    const bool read = memory_->regions()[buffer.arena()]
                          ->Read(buffer.offset(), std::as_writable_bytes(std::span(host_total)))
                          .ok();
    return read && io_.total == want && host_total == want &&
           io_.inputs == std::vector<float>{first + 1, first + 2, first + 3, first + 4};
  }

  LoopIo& io() { return io_; }
  const Clock& clock() const { return clock_; }
  Vm& vm() { return *vm_; }
  Backend& backend() { return *backend_; }
  v1::Program& program() { return tiny_.program(); }
  const ProgramMemory& memory() const { return *memory_; }
  absl::StatusOr<int64_t> External() {
    return MeasureExternal(tiny_.program(), *memory_, nullptr, backend_.get(), vm_.get(), nullptr);
  }
  int64_t reserved() const { return memory_->reserved_bytes(v1::DEVICE); }

 private:
  StateFence* const fence_;
  TinyProgram tiny_;
  uint32_t host_total_ = 0;
  SystemClock clock_;
  LoopIo io_;
  std::unique_ptr<Backend> backend_;
  std::optional<ProgramMemory> memory_;
  std::unique_ptr<Vm> vm_;
};

void ExpectRight(const DeviceOptions& options) {
  simt::ResetDevice(options);
  Loop loop;
  ASSERT_TRUE(loop.Open().ok());
  for (int run = 0; run < 4; ++run) EXPECT_TRUE(loop.RunIsRight()) << run;
  EXPECT_EQ(loop.vm().graph_runs(), 3) << "all but the first";
  EXPECT_EQ(simt::CountsOfDevice().graph_launches, 3);
}

TEST(CudaGraphTest, ARunLaunchedAsOneIsTheRunInWhateverOrderTheDeviceWorks) {
  InAllOrders(ExpectRight);
}

TEST(CudaGraphTest, EveryEdgeBetweenQueuesIsNeeded) {
  simt::ResetDevice({});
  int64_t edges = 0;
  {
    Loop loop;
    ASSERT_TRUE(loop.Open().ok());
    edges = simt::CountsOfDevice().waits;
  }
  // Three a link, the last copy, and each of the two other queues begins and ends. The input comes
  // before a copy that computation has waited for.
  ASSERT_EQ(edges, 3 * kLinks + 1 + 2 * 2);
  int noticed = 0;
  for (int64_t edge = 1; edge <= edges; ++edge) noticed += NoticesWithout<Loop>(edge) ? 1 : 0;
  // Queue to the host: its first copy waits for computation anyway. Queue to the device: its last
  // copy is waited for anyway.
  EXPECT_EQ(noticed, edges - 2);
}

TEST(CudaGraphTest, RunsThatSomebodyWantsToSeeOrMayHoldBackAreLaunchedOneByOne) {
  simt::ResetDevice({});
  Fence fence;
  Loop loop(&fence);
  ASSERT_TRUE(loop.Open().ok());
  EXPECT_TRUE(loop.RunIsRight());
  EXPECT_TRUE(loop.RunIsRight());
  ASSERT_EQ(loop.vm().graph_runs(), 1);
  const Slice seen = loop.vm().Find("train")->streams[kCompute].slices[0];
  EXPECT_TRUE(loop.RunIsRight());
  EXPECT_EQ(loop.vm().Find("train")->streams[kCompute].slices[0].end_ns, seen.end_ns)
      << "a graph leaves no times";
  EXPECT_TRUE(loop.RunIsRight(/*one_by_one=*/true));
  EXPECT_GT(loop.vm().Find("train")->streams[kCompute].slices[0].end_ns, seen.end_ns);
  ++fence.begun;
  EXPECT_TRUE(loop.RunIsRight());
  EXPECT_EQ(loop.vm().graph_runs(), 2) << "the first after somebody began to read, on every rank";
  fence.unread = false;
  EXPECT_TRUE(loop.RunIsRight());
  EXPECT_EQ(loop.vm().graph_runs(), 3);
  EXPECT_TRUE(fence.unread) << "a graph does not begin before";
}

TEST(CudaGraphTest, OneOfManyRunsIsLaunchedOneByOneForItsTimes) {
  simt::ResetDevice({});
  Loop loop;
  ASSERT_TRUE(loop.Open().ok());
  for (int64_t run = 0; run < 2 * kRunsAGraph; ++run) EXPECT_TRUE(loop.RunIsRight()) << run;
  EXPECT_EQ(loop.vm().graph_runs(), 2 * (kRunsAGraph - 1));
}

// The only one that leaves slices is far slower than those that are scaled from it.
TEST(CudaGraphTest, SharesOfRunsWithoutSlicesNeverAddUpToMoreThanPassed) {
  constexpr int kRuns = 20;
  simt::ResetDevice({});
  Loop loop;
  ASSERT_TRUE(loop.Open().ok());
  loop.io().delay = std::chrono::milliseconds(100);
  double total = 0, shares = 0, unscaled = 0;
  const int64_t start_ns = loop.clock().MonotonicNanos();
  for (int run = 0; run < kRuns; ++run) {
    EXPECT_TRUE(loop.RunIsRight()) << run;
    const SequenceTimes slices = Times(*loop.vm().Find("train"));
    const SequenceTimes times = Scaled(slices, loop.vm().slices_scale());
    if (run == 0) {
      EXPECT_EQ(loop.vm().slices_scale(), 1);
    }
    total += times.total;
    shares += times.compute + times.offload_exposed;
    unscaled += slices.total;
  }
  const double wall = (loop.clock().MonotonicNanos() - start_ns) * 1e-9;
  ASSERT_EQ(loop.vm().graph_runs(), kRuns - 1);
  EXPECT_GT(shares, 0);
  EXPECT_LE(shares, total);
  EXPECT_LE(total, wall);
  EXPECT_GT(unscaled, wall) << "the first was slow, or nothing is seen here";
  double copying = 0;
  for (const CopyTraffic& traffic : loop.vm().traffic()) copying += traffic.seconds;
  EXPECT_GT(copying, 0);
  EXPECT_LE(copying, 2 * wall) << "two queues of copies";
}

TEST(CudaGraphTest, TheEnvironmentSwitchesThemOff) {
  simt::ResetDevice({});
  ASSERT_EQ(::setenv("TERRACE_CUDA_GRAPHS", "0", 1), 0);
  Loop loop;
  const absl::Status opened = loop.Open();
  ASSERT_EQ(::unsetenv("TERRACE_CUDA_GRAPHS"), 0);
  ASSERT_TRUE(opened.ok());
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(loop.RunIsRight());
  EXPECT_EQ(loop.vm().graph_runs(), 0);
}

TEST(CudaGraphTest, TheirMemoryIsThereBeforeTheRankIsReadyAndGivenBack) {
  constexpr int64_t kGraph = 5 << 20;
  simt::ResetDevice({.context_bytes = 77 << 20, .graph_bytes = kGraph});
  {
    Loop loop;
    ASSERT_TRUE(loop.Open().ok());
    const auto external = loop.backend().ExternalBytes(loop.reserved(), nullptr);
    ASSERT_TRUE(external.ok());
    EXPECT_EQ(*external, (77 << 20) + 8 + kGraph) << "context, the word for faults, the graph";
    EXPECT_EQ(simt::CountsOfDevice().graphs, 1);
    EXPECT_EQ(loop.vm().graph_bytes(), kGraph);
    EXPECT_THAT(MemoryLine({loop.program(), loop.memory(), *external, loop.vm().graph_bytes()}),
                HasSubstr(", graphs took 5.0 MiB of it)"));
    EXPECT_EQ(MemoryMetrics({loop.program(), loop.memory(), *external, kGraph}).graph_bytes(),
              kGraph);
    EXPECT_TRUE(loop.vm().DropGraphs());
    EXPECT_EQ(loop.vm().graph_bytes(), 0);
  }
  EXPECT_EQ(simt::CountsOfDevice().graphs, 0);
}

// Beside the arena a limit leaves room for the context alone, or for the graph too.
TEST(CudaGraphTest, GraphsGoWhereTheLimitHasNoRoomForThem) {
  constexpr int64_t kContext = 77 << 20, kGraph = 5 << 20, kFaultWord = 8;
  for (const int64_t room : {kContext + kFaultWord, kContext + kFaultWord + kGraph}) {
    const bool stays = room > kContext + kFaultWord;
    simt::ResetDevice({.context_bytes = kContext, .graph_bytes = kGraph});
    Loop loop;
    ASSERT_TRUE(loop.Open().ok());
    loop.program().set_device_limit_bytes(loop.reserved() + room);
    const auto external = loop.External();
    ASSERT_TRUE(external.ok()) << external.status();
    EXPECT_EQ(*external, room);
    EXPECT_TRUE(CheckDeviceLimit({loop.program(), loop.memory(), *external}).ok());
    EXPECT_EQ(simt::CountsOfDevice().graphs, stays ? 1 : 0);
    EXPECT_EQ(loop.vm().graph_bytes(), stays ? kGraph : 0);
    for (int run = 0; run < 3; ++run) EXPECT_TRUE(loop.RunIsRight()) << run;
    EXPECT_EQ(loop.vm().graph_runs(), stays ? 2 : 0);
  }
}

TEST(CudaGraphTest, WithoutRoomForAGraphRunsAreLaunchedOneByOne) {
  simt::ResetDevice({.memory_bytes = 64 << 20, .context_bytes = 32 << 20, .graph_bytes = 33 << 20});
  Loop loop;
  ASSERT_TRUE(loop.Open().ok());
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(loop.RunIsRight()) << run;
  EXPECT_EQ(loop.vm().graph_runs(), 0);
}

TEST(CudaGraphTest, ADeviceThatFailsInsideAGraphSaysSoAndHowToLearnMore) {
  simt::ResetDevice({});
  int64_t work = 0;
  {
    Loop loop;
    ASSERT_TRUE(loop.Open().ok());
    ASSERT_TRUE(loop.RunIsRight());
    work = simt::CountsOfDevice().work;
  }
  simt::ResetDevice({.failing_launch = work + 5});
  Loop loop;
  ASSERT_TRUE(loop.Open().ok());
  ASSERT_TRUE(loop.RunIsRight());
  LoopIo io;
  const absl::Status status = loop.vm().Run("train", &io);
  EXPECT_EQ(loop.vm().graph_runs(), 1);
  EXPECT_THAT(std::string(status.message()), HasSubstr("train, launched as one graph"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("unspecified launch failure"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("TERRACE_CUDA_GRAPHS=0"));
  simt::ResetDevice({});
}

}  // namespace
}  // namespace terrace
