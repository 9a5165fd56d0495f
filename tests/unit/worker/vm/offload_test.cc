// The VM on three tiers: what copies move, what the host computes, how failures of the file end.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/vm/tiny_program.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

using kernels::Op;
using testing::Each;
using testing::HasSubstr;

constexpr int64_t kPage = 1024;  // elements of four bytes

// Streams of the programs below.
enum : uint32_t { kCompute, kToDevice, kToHost, kRead, kWrite, kHost };
TinyProgram OfAllStreams() {
  return TinyProgram({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::DEVICE_TO_HOST, v1::NVME_READ,
                      v1::NVME_WRITE, v1::HOST_COMPUTE});
}

class KeepingIo final : public SequenceIo {
 public:
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4> schedule) override {
    schedule[0] = 0.01f, schedule[1] = 0.1f, schedule[2] = 0.05f, schedule[3] = 0;
  }
  void Output(v1::OutputKind, std::span<const float> values) override {
    outputs.emplace_back(values.begin(), values.end());
    if (on_output) on_output();
  }
  std::function<void()> on_output;
  std::vector<std::vector<float>> outputs;
};

// Answers every request with `error` once it is told to.
class FailingIo final : public BlockIo {
 public:
  FailingIo(std::unique_ptr<BlockIo> io, const int* error) : io_(std::move(io)), error_(error) {}
  void RegisterMemory(std::span<std::byte> memory) override { io_->RegisterMemory(memory); }
  int Start(const BlockRequest& request) override { return io_->Start(request); }
  int Reap(std::span<BlockResult> results, absl::Duration timeout) override {
    const int count = io_->Reap(results, timeout);
    for (int i = 0; *error_ != 0 && i < count; ++i) results[i].result = -*error_;
    return count;
  }
  std::string description() const override { return io_->description(); }

 private:
  const std::unique_ptr<BlockIo> io_;
  const int* const error_;
};

class OffloadTest : public testing::Test {
 protected:
  OffloadTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-offload-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    nvme_.add_paths(folder_);
  }
  ~OffloadTest() override {
    vm_.reset();
    memory_.reset();
    std::filesystem::remove_all(folder_);
  }

  absl::StatusOr<std::unique_ptr<Vm>> Create(TinyProgram* tiny, StateFence* fence = nullptr) {
    auto memory = ProgramMemory::Reserve(
        tiny->program(), {.nvme = nvme_, .name = "offload", .wrap = [this](auto io) {
                            return std::make_unique<FailingIo>(std::move(io), &drive_error_);
                          }});
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_.emplace(*std::move(memory));
    return Vm::Create(tiny->program(),
                      {.threads = 2,
                       .arenas = memory_->arenas(),
                       .groups = groups_,
                       .nvme = memory_->nvme(),
                       .flight = flight_},
                      &clock_, fence);
  }
  Vm* Make(TinyProgram* tiny, StateFence* fence = nullptr) {
    auto vm = Create(tiny, fence);
    EXPECT_TRUE(vm.ok()) << vm.status();
    vm_ = *std::move(vm);
    return vm_.get();
  }
  // Why the program cannot be prepared.
  std::string Refusal(TinyProgram* tiny) { return std::string(Create(tiny).status().message()); }

  SystemClock clock_;
  v1::NvmeSpec nvme_;
  int drive_error_ = 0;
  FlightWriter* flight_ = nullptr;
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::optional<ProgramMemory> memory_;
  std::unique_ptr<Vm> vm_;
  KeepingIo io_;
  std::string folder_;
};

// Device -> host -> NVMe -> host -> device, and out.
TEST_F(OffloadTest, BytesSurviveTheWayThroughAllTiersAndBack) {
  TinyProgram tiny = OfAllStreams();
  const uint32_t x = tiny.Buffer(v1::F32, {kPage}), y = tiny.Buffer(v1::F32, {kPage});
  const uint32_t up = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  const uint32_t down = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  const uint32_t other = tiny.Buffer(v1::F32, {kPage}, v1::NVME);
  const uint32_t far = tiny.Buffer(v1::F32, {kPage}, v1::NVME);
  static_cast<void>(other);  // so that offset 0 is not what is meant
  tiny.Compute(kCompute, Op::kFill, kernels::FillAttrs{.value = 2.5f}, {{v1::WRITE, x}});
  tiny.Copy(kToHost, v1::TO_HOST, {{x, up}})->add_waits(0);
  tiny.Copy(kWrite, v1::NVME_STORE, {{up, far}})->add_waits(1);
  tiny.Copy(kRead, v1::NVME_LOAD, {{far, down}})->add_waits(2);
  tiny.Copy(kToDevice, v1::TO_DEVICE, {{down, y}})->add_waits(3);
  tiny.Output(kCompute, v1::LOGITS, y)->add_waits(4);
  Vm* vm = Make(&tiny);
  for (int run = 1; run <= 3; ++run) {
    ASSERT_TRUE(vm->Run("train", &io_).ok());
    EXPECT_THAT(io_.outputs.back(), Each(2.5f));
  }
  EXPECT_THAT(std::vector<float>(reinterpret_cast<float*>(memory_->arenas()[1]),
                                 reinterpret_cast<float*>(memory_->arenas()[1]) + kPage),
              Each(2.5f));
  for (const v1::CopyKind kind : {v1::TO_DEVICE, v1::TO_HOST, v1::NVME_LOAD, v1::NVME_STORE}) {
    EXPECT_EQ(vm->traffic()[kind].bytes, 3 * 4096) << kind;
    EXPECT_GT(vm->traffic()[kind].seconds, 0) << kind;
  }
  const auto lines = TrafficLines(vm->traffic());
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[3].tier(), v1::NVME);
  EXPECT_TRUE(lines[3].write());
}

TEST_F(OffloadTest, AllPairsOfOneCopyMove) {
  TinyProgram tiny = OfAllStreams();
  std::vector<std::pair<uint32_t, uint32_t>> to_host, store, load, to_device;
  for (int i = 0; i < 4; ++i) {
    const uint32_t x = tiny.Buffer(v1::F32, {kPage}), y = tiny.Buffer(v1::F32, {kPage});
    const uint32_t up = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
    const uint32_t down = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
    const uint32_t far = tiny.Buffer(v1::F32, {kPage}, v1::NVME);
    to_host.emplace_back(x, up), store.emplace_back(up, far), load.emplace_back(far, down);
    to_device.emplace_back(down, y);
    tiny.Compute(kCompute, Op::kFill, kernels::FillAttrs{.value = float(i)}, {{v1::WRITE, x}});
  }
  tiny.Copy(kToHost, v1::TO_HOST, to_host)->add_waits(3);
  tiny.Copy(kWrite, v1::NVME_STORE, store)->add_waits(4);
  tiny.Copy(kRead, v1::NVME_LOAD, load)->add_waits(5);
  tiny.Copy(kToDevice, v1::TO_DEVICE, to_device)->add_waits(6);
  for (const auto& [from, to] : to_device) tiny.Output(kCompute, v1::LOGITS, to)->add_waits(7);
  ASSERT_TRUE(Make(&tiny)->Run("train", &io_).ok());
  for (int i = 0; i < 4; ++i) EXPECT_THAT(io_.outputs[i], Each(float(i)));
}

// The same update on both sides, at a size that several threads share.
TEST_F(OffloadTest, TheHostComputesBitForBitWhatTheDeviceComputes) {
  constexpr int64_t kElements = 200'704;
  TinyProgram tiny = OfAllStreams();
  std::vector<std::pair<v1::Access, uint32_t>> device, host;
  std::vector<std::pair<uint32_t, uint32_t>> to_host;
  const v1::Access accesses[] = {v1::READ, v1::UPDATE, v1::UPDATE, v1::UPDATE, v1::READ, v1::READ};
  for (int i = 0; i < 6; ++i) {
    const std::vector<int64_t> shape = {i < 4 ? kElements : 4};
    device.emplace_back(accesses[i], tiny.Buffer(v1::F32, shape));
    host.emplace_back(accesses[i], tiny.Buffer(v1::F32, shape, v1::HOST));
    to_host.emplace_back(device[i].second, host[i].second);
  }
  const kernels::UpdateAttrs adamw{
      .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
  tiny.Copy(kToHost, v1::TO_HOST, to_host);
  tiny.Compute(kHost, Op::kUpdate, adamw, host)->add_waits(0);
  tiny.Compute(kCompute, Op::kUpdate, adamw, device)->add_waits(0);
  Vm* vm = Make(&tiny);
  const auto values = [&](int tier, uint32_t buffer) {
    return reinterpret_cast<float*>(memory_->arenas()[tier] +
                                    tiny.program().buffers(buffer).offset());
  };
  ASSERT_TRUE(vm->Warm().ok());
  for (int i = 0; i < 4; ++i) {
    for (int64_t k = 0; k < kElements; ++k)
      values(0, device[i].second)[k] = 1e-3f * static_cast<float>((k * 7919 + i * 31) % 1009 + 1);
  }
  const float scale[4] = {0.5f, 1, 2, 0}, schedule[4] = {0.01f, 0.1f, 0.05f, 0};
  std::memcpy(values(0, device[4].second), scale, sizeof scale);
  std::memcpy(values(0, device[5].second), schedule, sizeof schedule);
  ASSERT_TRUE(vm->Run("train", &io_).ok());
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(std::memcmp(values(0, device[i].second), values(1, host[i].second), kElements * 4), 0)
        << i;
    EXPECT_NE(values(0, device[i].second)[0], 1e-3f * static_cast<float>(i * 31 + 1)) << i;
  }
}

// No chain of streams waits for ever, whichever direction fails.
TEST_F(OffloadTest, AFailingDriveEndsTheRunAndNamesTheInstruction) {
  TinyProgram tiny = OfAllStreams();
  const uint32_t y = tiny.Buffer(v1::F32, {kPage});
  const uint32_t slot = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  const uint32_t far = tiny.Buffer(v1::F32, {kPage}, v1::NVME);
  tiny.Copy(kRead, v1::NVME_LOAD, {{far, slot}});
  tiny.Compute(kHost, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, slot}})->add_waits(0);
  tiny.Copy(kWrite, v1::NVME_STORE, {{slot, far}})->add_waits(1);
  tiny.Copy(kToDevice, v1::TO_DEVICE, {{slot, y}})->add_waits(1);
  tiny.Output(kCompute, v1::LOGITS, y)->add_waits(3);
  Vm* vm = Make(&tiny);
  ASSERT_TRUE(vm->Run("train", &io_).ok());
  const size_t outputs = io_.outputs.size();
  for (const int error : {EIO, ENODEV, ENOSPC, EBADF}) {
    drive_error_ = error;
    const absl::Status status = vm->Run("train", &io_);
    EXPECT_FALSE(status.ok()) << error;
    EXPECT_THAT(std::string(status.message()), HasSubstr("instruction 0 (copy): ")) << error;
    EXPECT_NE(status.code(), absl::StatusCode::kUnavailable) << "that is a lost peer: " << status;
    EXPECT_EQ(io_.outputs.size(), outputs);
  }
}

TEST_F(OffloadTest, ATruncatedFileEndsTheRun) {
  TinyProgram tiny = OfAllStreams();
  const uint32_t slot = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  const uint32_t far = tiny.Buffer(v1::F32, {kPage}, v1::NVME);
  tiny.Copy(kWrite, v1::NVME_STORE, {{slot, far}});
  Vm* vm = Make(&tiny);
  ASSERT_TRUE(vm->Run("train", &io_).ok());
  int files = 0;
  // The file has no name any more, but whoever is root reaches it.
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry, error).string();
    if (target.rfind(folder_, 0) != 0) continue;
    ++files;
    ASSERT_EQ(::truncate(entry.path().c_str(), 0), 0) << target;
  }
  ASSERT_GT(files, 0);
  const absl::Status status = vm->Run("train", &io_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("instruction 0 (copy): "));
}

TEST_F(OffloadTest, CopiesThatDoNotMatchTheirTiersAreRefused) {
  TinyProgram tiny = OfAllStreams();
  const uint32_t device = tiny.Buffer(v1::F32, {kPage});
  const uint32_t host = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  v1::Instruction* copy = tiny.Copy(kToHost, v1::TO_HOST, {{host, device}});
  EXPECT_THAT(Refusal(&tiny),
              HasSubstr("copies from HOST to DEVICE, must copy from DEVICE to HOST"));
  copy->mutable_copy()->set_kind(v1::TO_DEVICE);
  EXPECT_EQ(Refusal(&tiny), "");
  copy->mutable_operands(1)->set_shape(0, kPage - 1);
  EXPECT_THAT(Refusal(&tiny), HasSubstr("one dtype and size"));
  copy->mutable_operands()->RemoveLast();
  EXPECT_THAT(Refusal(&tiny), HasSubstr("must have pairs"));
  copy->mutable_copy()->set_kind(v1::COPY_UNSPECIFIED);
  EXPECT_THAT(Refusal(&tiny), HasSubstr("no copy of kind 0"));
}

TEST_F(OffloadTest, OnNvmeOnlyWholePagesMoveAndNothingComputes) {
  TinyProgram tiny = OfAllStreams();
  const uint32_t host = tiny.Buffer(v1::F32, {2 * kPage}, v1::HOST);
  const uint32_t far = tiny.Buffer(v1::F32, {2 * kPage}, v1::NVME);
  v1::Instruction* load = tiny.Copy(kRead, v1::NVME_LOAD, {{far, host}});
  for (v1::Operand& operand : *load->mutable_operands()) operand.set_shape(0, kPage + 1);
  EXPECT_THAT(Refusal(&tiny), HasSubstr("multiple of 4096"));
  for (v1::Operand& operand : *load->mutable_operands()) operand.set_shape(0, kPage);
  EXPECT_EQ(Refusal(&tiny), "");
  load->mutable_operands(0)->set_offset(512);
  EXPECT_THAT(Refusal(&tiny), HasSubstr("operand 0 must begin"));
  load->mutable_operands(0)->set_offset(4096);
  EXPECT_EQ(Refusal(&tiny), "");
  tiny.Compute(kHost, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, far}});
  EXPECT_THAT(Refusal(&tiny), HasSubstr("operand 0 lies on NVMe"));
}

TEST_F(OffloadTest, WithoutAFileACopyToNvmeIsRefused) {
  TinyProgram tiny = OfAllStreams();
  const uint32_t host = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  const uint32_t far = tiny.Buffer(v1::F32, {kPage}, v1::NVME);
  tiny.Copy(kWrite, v1::NVME_STORE, {{host, far}});
  const auto memory = ProgramMemory::Reserve(tiny.program(), {.nvme = nvme_, .name = "offload"});
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto vm = Vm::Create(tiny.program(), {.arenas = memory->arenas()}, &clock_, nullptr);
  EXPECT_THAT(std::string(vm.status().message()), HasSubstr("no file on NVMe"));
}

class CountingFence final : public StateFence {
 public:
  void WaitUntilUnread() override { ++calls; }
  std::atomic<int> calls{0};
};

// A checkpoint reads state wherever it lies: whatever writes there must wait for it.
TEST_F(OffloadTest, EveryWriteOfStateOnAnyTierPassesTheFence) {
  TinyProgram tiny = OfAllStreams();
  const uint32_t device = tiny.Buffer(v1::F32, {kPage});
  const uint32_t slot = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  const uint32_t on_host = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  const uint32_t on_nvme = tiny.Buffer(v1::F32, {kPage}, v1::NVME);
  for (const uint32_t state : {on_host, on_nvme}) tiny.program().add_state()->set_buffer(state);
  tiny.Copy(kToHost, v1::TO_HOST, {{device, on_host}});  // writes
  tiny.Compute(kHost, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, slot}, {v1::UPDATE, on_host}})
      ->add_waits(0);                                                      // writes
  tiny.Copy(kWrite, v1::NVME_STORE, {{on_host, on_nvme}})->add_waits(1);   // writes
  tiny.Copy(kRead, v1::NVME_LOAD, {{on_nvme, slot}})->add_waits(2);        // reads
  tiny.Copy(kToDevice, v1::TO_DEVICE, {{on_host, device}})->add_waits(2);  // reads
  CountingFence fence;
  ASSERT_TRUE(Make(&tiny, &fence)->Run("train", &io_).ok());
  EXPECT_EQ(fence.calls.load(), 3);
}

TEST_F(OffloadTest, AWaitForASlowDriveIsOffloadExposed) {
  constexpr int64_t kPages = 64;
  nvme_.set_bytes_per_second(4 << 20);  // 256 KiB take 62 ms
  TinyProgram tiny = OfAllStreams();
  const uint32_t y = tiny.Buffer(v1::F32, {kPages * kPage});
  const uint32_t slot = tiny.Buffer(v1::F32, {kPages * kPage}, v1::HOST);
  const uint32_t far = tiny.Buffer(v1::F32, {kPages * kPage}, v1::NVME);
  tiny.Copy(kRead, v1::NVME_LOAD, {{far, slot}});
  tiny.Copy(kToDevice, v1::TO_DEVICE, {{slot, y}})->add_waits(0);
  tiny.Output(kCompute, v1::LOGITS, y)->add_waits(1);
  Vm* vm = Make(&tiny);
  ASSERT_TRUE(vm->Run("train", &io_).ok());
  const SequenceTimes times = Times(*vm->Find("train"));
  EXPECT_GE(times.offload_exposed, 0.05);
  EXPECT_LE(times.offload_exposed, times.total);
  EXPECT_GE(times.offload, times.offload_exposed);
  EXPECT_EQ(times.collective_exposed, 0);
}

// What a rank leaves behind that dies in the middle of a step.
TEST_F(OffloadTest, TheFlightRecorderSeesHowFarEachStreamHasCome) {
  const std::string directory = folder_ + "/run";
  std::filesystem::create_directory(directory);
  auto flight = FlightWriter::Create(directory, "", 6, &clock_);
  ASSERT_TRUE(flight.ok()) << flight.status();
  flight_ = flight->get();
  const auto reader = FlightReader::Open(directory);
  ASSERT_TRUE(reader.ok()) << reader.status();
  TinyProgram tiny = OfAllStreams();
  const uint32_t x = tiny.Buffer(v1::F32, {kPage});
  const uint32_t slot = tiny.Buffer(v1::F32, {kPage}, v1::HOST);
  for (int i = 0; i < 3; ++i)
    tiny.Compute(kCompute, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, x}});
  tiny.Copy(kToHost, v1::TO_HOST, {{x, slot}})->add_waits(2);
  tiny.Output(kCompute, v1::LOGITS, x)->add_waits(3);
  absl::StatusOr<FlightState> inside = absl::UnknownError("not run");
  io_.on_output = [&] { inside = reader->State(); };
  ASSERT_TRUE(Make(&tiny)->Run("train", &io_).ok());
  ASSERT_TRUE(inside.ok()) << inside.status();
  EXPECT_EQ(inside->sequence, 0);
  ASSERT_EQ(inside->finished.size(), 6);
  EXPECT_EQ(inside->finished[kCompute], 3);  // the output is being executed
  EXPECT_GE(inside->finished[kToHost], 1);
  EXPECT_EQ(reader->State()->sequence, kFlightNoSequence);
  vm_.reset();  // before the recorder
}

}  // namespace
}  // namespace terrace
