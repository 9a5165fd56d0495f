// The order of instructions on CUDA streams, on a device that executes late and in any order that
// it is allowed: what is right by luck on a real one is wrong here.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/worker/vm/tiny_program.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/sequence_times.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

using kernels::Op;
using simt::DeviceOptions;
using testing::HasSubstr;

constexpr uint32_t kCompute = 0, kToDevice = 1, kToHost = 2, kHost = 3;
constexpr int kLinks = 4;

class OutputIo final : public SequenceIo {
 public:
  void LoadBatch(int, const BatchTarget& batch) override {
    const std::span<int32_t> tokens = batch.tokens;
    const std::span<int32_t> targets = batch.targets;
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first_token + static_cast<int32_t>(i);
    for (int32_t& target : targets) target = 0;
  }
  void LoadSchedule(std::span<float, 4> schedule) override {
    for (float& value : schedule) value = ++loads;
  }
  void Output(v1::OutputKind, std::span<const float> values) override {
    last.assign(values.begin(), values.end());
  }

  int32_t first_token = 0;
  float loads = 0;
  std::vector<float> last;
};

// A value goes around: made by the device, copied to the host, added to there, copied back, added
// to a total. Each link of the chain waits for the one before, on another stream.
class Chain {
 public:
  Chain() : tiny_({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::DEVICE_TO_HOST, v1::HOST_COMPUTE}) {
    const uint32_t x = tiny_.Buffer(v1::F32, {64}), y = tiny_.Buffer(v1::F32, {64}),
                   total = tiny_.Buffer(v1::F32, {64}),
                   host_x = tiny_.Buffer(v1::F32, {64}, v1::HOST),
                   host_y = tiny_.Buffer(v1::F32, {64}, v1::HOST);
    tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, total}});
    tiny_.Compute(kHost, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, host_y}});
    for (int i = 1; i <= kLinks; ++i) {
      const auto* fill = tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{.value = ValueOf(i)},
                                       {{v1::WRITE, x}});
      v1::Instruction* down = tiny_.Copy(kToHost, v1::TO_HOST, {{x, host_x}});
      down->add_waits(fill->id());
      v1::Instruction* sum = tiny_.Compute(kHost, Op::kAdd, kernels::NoAttrs{},
                                           {{v1::READ, host_x}, {v1::UPDATE, host_y}});
      sum->add_waits(down->id());
      v1::Instruction* up = tiny_.Copy(kToDevice, v1::TO_DEVICE, {{host_y, y}});
      up->add_waits(sum->id());
      tiny_.Compute(kCompute, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, y}, {v1::UPDATE, total}})
          ->add_waits(up->id());
    }
    tiny_.Output(kCompute, v1::LOSS_TOTAL, total);
    tiny_.program().set_device("cuda");
  }

  absl::Status Open(int ordinal = 0) {
    auto backend = OpenBackend("cuda", ordinal);
    if (!backend.ok()) return backend.status();
    backend_ = *std::move(backend);
    auto memory = ProgramMemory::Reserve(tiny_.program(), MemoryOptions{.backend = backend_.get()});
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    auto vm = Vm::Create(tiny_.program(), {.arenas = memory_->arenas(), .backend = backend_.get()},
                         &clock_, nullptr);
    if (!vm.ok()) return vm.status();
    vm_ = *std::move(vm);
    return absl::OkStatus();
  }
  ~Chain() { vm_.reset(), memory_.reset(); }

  // What a link brings to the total is the sum so far. Powers, so that no two mistakes make up for
  // each other.
  static float ValueOf(int link) { return static_cast<float>(1 << (3 * link)); }
  bool RunIsRight() {
    float sum = 0, total = 0;
    for (int i = 1; i <= kLinks; ++i) total += sum += ValueOf(i);
    OutputIo io;
    const absl::Status ran = vm_->Run("train", &io);
    return ran.ok() && io.last == std::vector<float>(64, total);
  }

  TinyProgram& tiny() { return tiny_; }
  Vm& vm() { return *vm_; }
  Backend& backend() { return *backend_; }
  ProgramMemory& memory() { return *memory_; }

 private:
  TinyProgram tiny_;
  SystemClock clock_;
  std::unique_ptr<Backend> backend_;
  std::optional<ProgramMemory> memory_;
  std::unique_ptr<Vm> vm_;
};

// A fresh chain on a fresh device, run twice: what the first run leaves must not help the second.
bool IsRight(const DeviceOptions& options) {
  simt::ResetDevice(options);
  Chain chain;
  EXPECT_TRUE(chain.Open().ok());
  const bool first = chain.RunIsRight();
  return chain.RunIsRight() && first;
}

TEST(CudaStreamsTest, AChainThroughTheHostKeepsItsOrderWheneverTheDeviceWorks) {
  for (int64_t slow = 0; slow <= 4; ++slow)
    EXPECT_TRUE(IsRight({.order = DeviceOptions::Order::kLazy, .slow_stream = slow})) << slow;
  EXPECT_TRUE(IsRight({.order = DeviceOptions::Order::kEager}));
  for (unsigned seed = 1; seed <= 20; ++seed)
    EXPECT_TRUE(IsRight({.order = DeviceOptions::Order::kRandom, .seed = seed})) << seed;
}

// The chain as the body of a loop, in which a link brings 1 to the sum.
class LoopedChain {
 public:
  explicit LoopedChain(uint32_t trips)
      : trips_(trips),
        tiny_({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::DEVICE_TO_HOST, v1::HOST_COMPUTE}) {
    const uint32_t x = tiny_.Buffer(v1::F32, {64}), y = tiny_.Buffer(v1::F32, {64}),
                   total = tiny_.Buffer(v1::F32, {64}),
                   host_x = tiny_.Buffer(v1::F32, {64}, v1::HOST),
                   host_y = tiny_.Buffer(v1::F32, {64}, v1::HOST);
    tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, total}});
    tiny_.Compute(kHost, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, host_y}});
    const auto* fill =
        tiny_.Compute(kCompute, Op::kFill, kernels::FillAttrs{.value = 1}, {{v1::WRITE, x}});
    v1::Instruction* down = tiny_.Copy(kToHost, v1::TO_HOST, {{x, host_x}});
    down->add_waits(fill->id());
    v1::Instruction* sum = tiny_.Compute(kHost, Op::kAdd, kernels::NoAttrs{},
                                         {{v1::READ, host_x}, {v1::UPDATE, host_y}});
    sum->add_waits(down->id());
    v1::Instruction* up = tiny_.Copy(kToDevice, v1::TO_DEVICE, {{host_y, y}});
    up->add_waits(sum->id());
    tiny_.Compute(kCompute, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, y}, {v1::UPDATE, total}})
        ->add_waits(up->id());
    v1::Loop* loop = tiny_.program().mutable_sequences(0)->add_loops();
    loop->set_first(2), loop->set_count(5), loop->set_trips(trips);
    tiny_.Output(kCompute, v1::LOSS_TOTAL, total);
    tiny_.program().set_device("cuda");
  }

  // Sums up to 2^24 are exact in f32.
  void ExpectRight() {
    auto backend = OpenBackend("cuda", 0);
    ASSERT_TRUE(backend.ok()) << backend.status();
    auto memory = ProgramMemory::Reserve(tiny_.program(), MemoryOptions{.backend = backend->get()});
    ASSERT_TRUE(memory.ok()) << memory.status();
    SystemClock clock;
    auto vm = Vm::Create(tiny_.program(), {.arenas = memory->arenas(), .backend = backend->get()},
                         &clock, nullptr);
    ASSERT_TRUE(vm.ok()) << vm.status();
    for (int run = 0; run < 2; ++run) {
      OutputIo io;
      ASSERT_EQ((*vm)->Run("train", &io), absl::OkStatus());
      EXPECT_EQ(io.last, std::vector<float>(64, 0.5F * trips_ * (trips_ + 1)));
    }
    vm->reset();
  }

 private:
  const uint32_t trips_;
  TinyProgram tiny_;
};

// Marks of queues are used in turn: there are fewer than the instructions that a loop executes.
TEST(CudaStreamsTest, ALoopOfMoreInstructionsThanMarksKeepsItsOrder) {
  constexpr uint32_t kTrips = 2 * kMarksInLoopsMin;
  for (const int64_t slow : {0, 3}) {
    simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .slow_stream = slow});
    LoopedChain(kTrips).ExpectRight();
  }
  simt::ResetDevice({.order = DeviceOptions::Order::kRandom, .seed = 1});
  LoopedChain(kTrips).ExpectRight();
}

// Adds a row of a table for each token of each batch: in a loop, batches in two slots.
class LoopedBatches {
 public:
  static constexpr int kRows = 11, kColumns = 4, kTokens = 3;

  explicit LoopedBatches(uint32_t trips) : tiny_({v1::COMPUTE, v1::HOST_TO_DEVICE}) {
    table_ = tiny_.Buffer(v1::F32, {kRows, kColumns});
    const uint32_t total = tiny_.Buffer(v1::F32, {kTokens, kColumns});
    const uint32_t row = tiny_.Buffer(v1::F32, {kTokens, kColumns});
    const uint32_t tokens = tiny_.Buffer(v1::I32, {kTokens});
    tiny_.Buffer(v1::I32, {kTokens});  // the second slot
    v1::Program& program = tiny_.program();
    program.mutable_rules()->set_micro_batch(1);
    program.mutable_rules()->set_micro_batches(trips);
    program.mutable_rules()->set_sequence_length(kTokens);
    tiny_.Compute(0, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, total}});
    v1::Instruction* load = tiny_.Input(1, v1::LOAD_BATCH, {tokens});
    load->add_operands();  // no targets
    load->mutable_operands(0)->set_slots(2);
    load->set_micro_batch(0);
    v1::Instruction* gather =
        tiny_.Compute(0, Op::kGatherRows, kernels::NoAttrs{},
                      {{v1::READ, table_}, {v1::READ, tokens}, {v1::WRITE, row}});
    gather->mutable_operands(1)->set_slots(2);
    gather->add_waits(load->id());
    v1::BackWait* free = load->add_back_waits();
    free->set_instruction(gather->id());
    free->set_iterations(2);
    tiny_.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, row}, {v1::UPDATE, total}});
    v1::Loop* loop = program.mutable_sequences(0)->add_loops();
    loop->set_first(1), loop->set_count(3), loop->set_trips(trips), loop->set_micro_batches(1);
    tiny_.Output(0, v1::LOSS_TOTAL, total);
    program.set_device("cuda");
  }

  const v1::Program& program() { return tiny_.program(); }
  uint32_t table() const { return table_; }

 private:
  TinyProgram tiny_;
  uint32_t table_ = 0;
};

// Every token of a micro-batch is its number.
class BatchIo final : public SequenceIo {
 public:
  void LoadBatch(int micro_batch, const BatchTarget& batch) override {
    const std::span<int32_t> tokens = batch.tokens;
    for (int32_t& token : tokens) token = micro_batch % LoopedBatches::kRows;
  }
  void LoadSchedule(std::span<float, 4>) override {}
  void Output(v1::OutputKind, std::span<const float> values) override {
    last.assign(values.begin(), values.end());
  }
  std::vector<float> last;
};

// What the host has read for one micro-batch must not be overwritten by the next before the device
// has taken it.
TEST(CudaStreamsTest, BatchesOfALoopDoNotOverwriteEachOther) {
  constexpr int kTrips = 40;
  const auto value_of = [](int row) { return static_cast<float>(7 * row + 1); };
  for (int64_t slow = 0; slow <= 2; ++slow) {
    simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .slow_stream = slow});
    LoopedBatches batches(kTrips);
    auto backend = OpenBackend("cuda", 0);
    ASSERT_TRUE(backend.ok()) << backend.status();
    auto memory =
        ProgramMemory::Reserve(batches.program(), MemoryOptions{.backend = backend->get()});
    ASSERT_TRUE(memory.ok()) << memory.status();
    std::vector<float> rows;
    for (int i = 0; i < LoopedBatches::kRows * LoopedBatches::kColumns; ++i)
      rows.push_back(value_of(i / LoopedBatches::kColumns));
    const int64_t table = batches.program().buffers(static_cast<int>(batches.table())).offset();
    ASSERT_EQ(memory->regions()[0]->Write(table, std::as_bytes(std::span(rows))), absl::OkStatus());
    SystemClock clock;
    auto vm = Vm::Create(batches.program(), {.arenas = memory->arenas(), .backend = backend->get()},
                         &clock, nullptr);
    ASSERT_TRUE(vm.ok()) << vm.status();
    float expected = 0;
    for (int batch = 0; batch < kTrips; ++batch) expected += value_of(batch % LoopedBatches::kRows);
    BatchIo io;
    ASSERT_EQ((*vm)->Run("train", &io), absl::OkStatus());
    EXPECT_THAT(io.last, testing::Each(expected)) << slow;
    EXPECT_EQ(io.last.size(), LoopedBatches::kTokens * LoopedBatches::kColumns);
    vm->reset();
  }
}

TEST(CudaStreamsTest, EveryWaitBetweenStreamsIsNeeded) {
  ASSERT_TRUE(IsRight({}));
  const int64_t waits = simt::CountsOfDevice().waits;
  ASSERT_EQ(waits, 2 * 2 * kLinks) << "two a link and run";
  for (int64_t wait = 1; wait <= waits / 2; ++wait) {
    bool noticed = false;
    // Threads race: on a busy machine the one that should be late may be in time.
    for (int attempt = 0; attempt < 10 && !noticed; ++attempt) {
      for (int64_t slow = 2; slow <= 4 && !noticed; ++slow)
        noticed = !IsRight({.dropped_wait = wait, .slow_stream = slow});
    }
    EXPECT_TRUE(noticed) << "nothing comes of dropping wait " << wait;
  }
}

TEST(CudaStreamsTest, AHostThatDoesNotWaitForTheDeviceIsNoticed) {
  ASSERT_TRUE(IsRight({}));
  const int64_t syncs = simt::CountsOfDevice().syncs;
  int noticed = 0;
  // Threads race here too: another one's wait may do what the dropped one should.
  for (int attempt = 0; attempt < 5 && noticed < kLinks; ++attempt) {
    noticed = 0;
    for (int64_t sync = 1; sync <= syncs / 2; ++sync)
      noticed += IsRight({.dropped_sync = sync}) ? 0 : 1;
  }
  EXPECT_GE(noticed, kLinks) << "of the copies to the host";
}

TEST(CudaStreamsTest, EveryThreadWorksOnTheDeviceOfItsRank) {
  simt::ResetDevice({.devices = 3});
  Chain chain;
  ASSERT_TRUE(chain.Open(/*ordinal=*/2).ok());
  EXPECT_TRUE(chain.RunIsRight());
}

TEST(CudaStreamsTest, RanksBeyondTheLastDeviceShareThem) {
  simt::ResetDevice({.devices = 2});
  Chain chain;
  ASSERT_TRUE(chain.Open(/*ordinal=*/5).ok());
  EXPECT_TRUE(chain.RunIsRight());
}

TEST(CudaStreamsTest, TimesAreTheDevicesAndFollowTheWaits) {
  simt::ResetDevice({});
  Chain chain;
  ASSERT_TRUE(chain.Open().ok());
  ASSERT_TRUE(chain.RunIsRight());
  const PreparedSequence& sequence = *chain.vm().Find("train");
  for (const PreparedStream& stream : sequence.streams) {
    for (size_t i = 0; i < stream.slices.size(); ++i) {
      EXPECT_LE(stream.slices[i].start_ns, stream.slices[i].end_ns);
      for (const WaitPoint& point : stream.instructions[i].waits) {
        const Slice& before = sequence.streams[point.stream].slices[point.position - 1];
        // CUDA's events know no more than half a microsecond.
        EXPECT_GE(stream.slices[i].start_ns, before.end_ns - 1000);
      }
    }
  }
  EXPECT_GT(Times(sequence).offload, 0);
}

TEST(CudaStreamsTest, WhatKernelsMeetEndsTheRunAndIsForgotten) {
  simt::ResetDevice({});
  TinyProgram tiny({v1::COMPUTE, v1::HOST_TO_DEVICE});
  const uint32_t tokens = tiny.Buffer(v1::I32, {8}), targets = tiny.Buffer(v1::I32, {8});
  const uint32_t table = tiny.Buffer(v1::F32, {8, 4}), x = tiny.Buffer(v1::F32, {8, 4});
  tiny.program().mutable_rules()->set_micro_batch(1);
  tiny.program().mutable_rules()->set_sequence_length(8);
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = 2}, {{v1::WRITE, table}});
  tiny.Input(1, v1::LOAD_BATCH, {tokens, targets});
  tiny.Compute(0, Op::kGatherRows, kernels::NoAttrs{},
               {{v1::READ, table}, {v1::READ, tokens}, {v1::WRITE, x}})
      ->add_waits(1);
  tiny.Output(0, v1::LOGITS, x);
  auto backend = OpenBackend("cuda", 0);
  ASSERT_TRUE(backend.ok()) << backend.status();
  auto memory = ProgramMemory::Reserve(tiny.program(), MemoryOptions{.backend = backend->get()});
  ASSERT_TRUE(memory.ok()) << memory.status();
  const SystemClock clock;
  auto vm = Vm::Create(tiny.program(), {.arenas = memory->arenas(), .backend = backend->get()},
                       &clock, nullptr);
  ASSERT_TRUE(vm.ok()) << vm.status();
  OutputIo io;
  io.first_token = 3;  // 8 and more lie outside the table
  const absl::Status bad = (*vm)->Run("train", &io);
  EXPECT_THAT(std::string(bad.message()),
              HasSubstr("gather_rows: the index at position 5 is outside its table"));
  io.first_token = 0;
  EXPECT_TRUE((*vm)->Run("train", &io).ok());
  EXPECT_EQ(io.last, std::vector<float>(32, 2));
}

TEST(CudaStreamsTest, ADeviceThatFailsEndsTheRunOfAllStreams) {
  for (int64_t launch = 1; launch <= 3 * kLinks; launch += 5) {
    simt::ResetDevice({.failing_launch = launch});
    Chain chain;
    ASSERT_TRUE(chain.Open().ok());
    OutputIo io;
    const absl::Status status = chain.vm().Run("train", &io);
    EXPECT_THAT(std::string(status.message()), HasSubstr("unspecified launch failure")) << launch;
    EXPECT_THAT(std::string(status.message()), HasSubstr("instruction ")) << launch;
  }
  simt::ResetDevice({});
}

TEST(CudaStreamsTest, TheHostCannotTouchTheDevicesMemory) {
  simt::ResetDevice({});
  Chain chain;
  ASSERT_TRUE(chain.Open().ok());
  Region* const device = chain.memory().regions()[0];
  EXPECT_EQ(device->data(), nullptr);
  ASSERT_NE(device->device_data(), nullptr);
  EXPECT_DEATH({ *device->device_data() = std::byte{1}; }, "");
}

TEST(CudaMemoryTest, RegionsAreReadWrittenAndZeroedByRange) {
  simt::ResetDevice({});
  Chain chain;
  ASSERT_TRUE(chain.Open().ok());
  Region* const device = chain.memory().regions()[0];
  const std::vector<std::byte> written(100, std::byte{7});
  ASSERT_TRUE(device->Write(3, written).ok());
  ASSERT_TRUE(device->Zero(53, 10).ok());
  std::vector<std::byte> read(102);
  ASSERT_TRUE(device->Read(2, read).ok());
  EXPECT_NE(read[0], std::byte{7});
  for (int i = 0; i < 100; ++i) {
    const bool zeroed = i >= 50 && i < 60;
    EXPECT_EQ(read[i + 1], zeroed ? std::byte{0} : std::byte{7}) << i;
  }
  EXPECT_EQ(device->Read(device->bytes() - 1, std::span(read).first(2)).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(device->Zero(-1, 1).code(), absl::StatusCode::kOutOfRange);
}

TEST(CudaMemoryTest, WhatTheProcessHoldsOutsideItsArenaIsCounted) {
  simt::ResetDevice({.context_bytes = 77 << 20});
  Chain chain;
  ASSERT_TRUE(chain.Open().ok());
  const auto external =
      chain.backend().ExternalBytes(chain.memory().reserved_bytes(v1::DEVICE), nullptr);
  ASSERT_TRUE(external.ok());
  EXPECT_EQ(*external, (77 << 20) + 8) << "the context, and the word for faults";
  EXPECT_EQ(chain.memory().pinned_bytes(), chain.memory().reserved_bytes(v1::HOST));
}

TEST(CudaMemoryTest, ADeviceWithTooLittleMemorySaysHowMuchAndTheWayOut) {
  simt::ResetDevice({.memory_bytes = 64 << 20, .context_bytes = (64 << 20) - 512});
  Chain chain;
  const absl::Status status = chain.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the rank needs"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("of 64.0 MiB free"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lower resources.device_memory"));
}

TEST(CudaBackendTest, WithoutADriverOrADeviceOneLineSaysSo) {
  simt::ResetDevice({.driver = false});
  auto backend = OpenBackend("cuda", 0);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(backend.status().message()),
              HasSubstr("resources.device: got cuda, but cuda: no NVIDIA driver"));
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("set resources.device: cpu"));
  simt::ResetDevice({.devices = 0});
  backend = OpenBackend("cuda", 0);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("no NVIDIA device can be used"));
  EXPECT_FALSE(ListCudaDevices().ok());
  simt::ResetDevice({.devices = 2});
  const auto devices = ListCudaDevices();
  ASSERT_TRUE(devices.ok());
  ASSERT_EQ(devices->size(), 2);
  EXPECT_EQ((*devices)[1].name, "NVIDIA Fake 1GB");
}

TEST(CudaBackendTest, AComputationOnTheHostMayNotNameDeviceMemory) {
  simt::ResetDevice({});
  Chain chain;
  chain.tiny().program().mutable_sequences(0)->mutable_instructions(0)->set_stream(kHost);
  EXPECT_THAT(std::string(chain.Open().message()),
              HasSubstr("operand 0 lies on the device, its stream runs on the host"));
}

}  // namespace
}  // namespace terrace
