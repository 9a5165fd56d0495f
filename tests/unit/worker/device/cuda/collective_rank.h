// A rank whose sequence has collectives, on the device that the host plays, with groups whose other
// member has the same data.
//
// Used on one thread. REQUIRES: simt::ResetDevice before a CollectiveRank is made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
#include "tests/unit/worker/device/cuda/passed_on_backend.h"
#include "tests/unit/worker/vm/member_of_two.h"
#include "tests/unit/worker/vm/tiny_program.h"
#include "worker/device/cuda_queue.h"
#include "worker/rank/memory_report.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/vm.h"

namespace terrace {

// What all groups of a rank share.
struct TwinState {
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
  TwinGroup(std::string name, TwinState* shared) : name_(std::move(name)), shared_(*shared) {}
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
  TwinState& shared_;
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
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4> schedule) override {
    for (float& value : schedule) value = ++loaded;
  }
  void Output(v1::OutputKind, std::span<const float> values) override {
    total.assign(values.begin(), values.end());
  }
  float loaded = 0;
  std::vector<float> total;
};

inline constexpr uint32_t kComputeStream = 0, kFirstStream = 1, kSecondStream = 2;

// An input is summed by one group, its double by another, and both are added up; the first group
// sums the result again.
class CollectiveRank {
 public:
  // `with_eval`: a second sequence of the same.
  explicit CollectiveRank(bool with_eval = false)
      : tiny_({v1::COMPUTE, v1::COLLECTIVE, v1::COLLECTIVE}) {
    const uint32_t first = tiny_.Group("data", {v1::DATA_REPLICA}),
                   second = tiny_.Group("tensor", {v1::TENSOR});
    const uint32_t x = tiny_.Buffer(v1::F32, {4}), y = tiny_.Buffer(v1::F32, {4});
    const auto* load = tiny_.Input(kComputeStream, v1::LOAD_SCHEDULE, {x});
    const auto sum = [&](uint32_t stream, uint32_t group, uint32_t buffer,
                         const v1::Instruction* after) {
      v1::Instruction* one = tiny_.AllReduce(stream, buffer);
      one->mutable_collective()->set_group(group);
      one->add_waits(after->id());
      return one;
    };
    const auto* sum_x = sum(kFirstStream, first, x, load);
    tiny_.Compute(kComputeStream, kernels::Op::kFill, kernels::FillAttrs{.value = 1},
                  {{v1::WRITE, y}});
    auto* add = tiny_.Compute(kComputeStream, kernels::Op::kAdd, kernels::NoAttrs{},
                              {{v1::READ, x}, {v1::UPDATE, y}});
    add->add_waits(sum_x->id());
    const auto* sum_y = sum(kSecondStream, second, y, add);
    auto* again = tiny_.Compute(kComputeStream, kernels::Op::kAdd, kernels::NoAttrs{},
                                {{v1::READ, x}, {v1::UPDATE, y}});
    again->add_waits(sum_y->id());
    const auto* last = sum(kFirstStream, first, y, again);
    tiny_.Output(kComputeStream, v1::LOSS_TOTAL, y)->add_waits(last->id());
    tiny_.program().set_device("cuda");
    if (!with_eval) return;
    v1::Sequence eval = tiny_.program().sequences(0);
    eval.set_name("eval");
    *tiny_.program().add_sequences() = std::move(eval);
  }
  ~CollectiveRank() { vm_.reset(), memory_.reset(); }

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

  TwinState shared;
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

}  // namespace terrace
