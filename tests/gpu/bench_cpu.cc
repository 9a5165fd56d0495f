// The CPU for rehearsals of the kernel benchmarks.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cpu/registry.h"
#include "tests/gpu/bench_machine.h"

namespace terrace::kernels::bench {
namespace {

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory Allocate(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  const int64_t whole = (bytes + kAlignment) / kAlignment * kAlignment;
  return Memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole)));
}

double SecondsOf(auto call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Cpu final : public Machine {
 public:
  std::string name() const override { return std::string("CPU, ") + cpu::InstructionSet(); }
  bool is_gpu() const override { return false; }
  bool Has(Op op) const override { return cpu::Find(op) != nullptr; }

  Status Prepare(const Case& bench_case) override {
    case_ = bench_case;
    views_.clear();
    memory_.clear();
    for (const TensorShape& shape : case_.operands) {
      TensorView& view = views_.emplace_back();
      static_cast<TensorShape&>(view) = shape;
      if (shape.absent()) continue;
      memory_.push_back(Allocate(shape.SpanBytes()));
      std::memset(memory_.back().get(), 0, shape.SpanBytes());
      view.data = memory_.back().get();
    }
    workspace_bytes_ = WorkspaceBytes(case_.op, case_.attrs, case_.operands, kThreads);
    workspace_ = Allocate(workspace_bytes_);
    return {};
  }

  Status Time(int calls, double* seconds) override {
    Status status;
    const Context context = {kThreads, workspace_.get(), workspace_bytes_};
    *seconds = SecondsOf([&] {
                 for (int i = 0; i < calls && status.ok(); ++i)
                   status = cpu::Find(case_.op)(case_.attrs, views_, context);
               }) /
               calls;
    return status;
  }

  Status TimeLibrary(int, double* seconds) override {
    *seconds = 0;
    return {};
  }

  Status CopyRate(int64_t bytes, double* rate) override {
    const Memory from = Allocate(bytes), to = Allocate(bytes);
    std::memset(from.get(), 1, bytes);
    std::memcpy(to.get(), from.get(), bytes);
    *rate = 2.0 * static_cast<double>(bytes) /
            SecondsOf([&] { std::memcpy(to.get(), from.get(), bytes); });
    return {};
  }

 private:
  static constexpr int kThreads = 1;
  Case case_;
  std::vector<TensorView> views_;
  std::vector<Memory> memory_;
  Memory workspace_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace

Status OpenCpu(std::unique_ptr<Machine>* machine) {
  const Status status = cpu::Prepare(1);
  if (status.ok()) *machine = std::make_unique<Cpu>();
  return status;
}

}  // namespace terrace::kernels::bench
