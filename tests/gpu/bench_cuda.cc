// A GPU for the kernel benchmarks: times by CUDA events on the device's stream.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <variant>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/registry.h"
#include "kernels/cuda/workspace.h"
#include "tests/gpu/bench_cublas.h"
#include "tests/gpu/bench_machine.h"

namespace terrace::kernels::bench {
namespace {

Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return {std::string("cuda: ") + what + ": " + cudaGetErrorString(error)};
}

struct Free {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Status Allocate(int64_t bytes, Memory* memory) {
  void* data = nullptr;
  const Status status = Check(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc");
  memory->reset(static_cast<std::byte*>(data));
  return status;
}

// A pair of events around some work.
class Stopwatch {
 public:
  Stopwatch() {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <typename Work>
  Status Time(cudaStream_t stream, int times, Work work, double* seconds) {
    Status status = work();  // the first is not timed
    if (status.ok()) status = Check(cudaEventRecord(begin_, stream), "cudaEventRecord");
    for (int i = 0; i < times && status.ok(); ++i) status = work();
    if (status.ok()) status = Check(cudaEventRecord(end_, stream), "cudaEventRecord");
    if (status.ok()) status = Check(cudaEventSynchronize(end_), "the kernel");
    float milliseconds = 0;
    if (status.ok()) {
      status = Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    }
    *seconds = milliseconds / 1e3 / times;
    return status;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class Gpu final : public Machine {
 public:
  explicit Gpu(std::unique_ptr<cuda::Device> device) : device_(std::move(device)) {}

  std::string name() const override { return device_->name(); }
  bool is_gpu() const override { return true; }
  bool Has(Op op) const override { return cuda::Find(op) != nullptr; }

  bool has_wgmma() const override { return device_->has_wgmma(); }
  void UseWgmma(bool use) override { wgmma_ = use; }

  // Zeros: kernels that look at their numbers take the same path for all of them, and every index
  // is inside its table.
  Status Prepare(const Case& bench_case) override {
    case_ = bench_case;
    best_product_.reset();
    views_.clear();
    memory_.clear();
    workspace_.reset();
    Status status;
    for (const TensorShape& shape : case_.operands) {
      TensorView& view = views_.emplace_back();
      static_cast<TensorShape&>(view) = shape;
      if (shape.absent()) continue;
      status = Allocate(shape.SpanBytes(), &memory_.emplace_back());
      if (!status.ok()) return status;
      view.data = memory_.back().get();
      status = Check(cudaMemset(view.data, 0, static_cast<size_t>(shape.SpanBytes())), "memset");
      if (!status.ok()) return status;
    }
    workspace_bytes_ = std::max(cuda::WorkspaceBytes(case_.op, case_.attrs, case_.operands),
                                cuda::kGemmLibraryBytes);
    status = Allocate(workspace_bytes_, &workspace_);
    return status.ok() ? Check(cudaDeviceSynchronize(), "memset") : status;
  }

  Status Time(int calls, double* seconds) override {
    const Kernel kernel = Find();
    cuda::Context context = device_->MakeContext(workspace_.get(), workspace_bytes_);
    context.wgmma_attention = wgmma_;
    const Status status = stopwatch_.Time(
        context.stream, calls, [&] { return kernel(case_.attrs, views_, context); }, seconds);
    return status.ok() ? device_->Finish() : status;
  }

  Status TimeLibrary(int calls, double* seconds) override {
    if (best_product_ == nullptr) {
      const cuda::Context context = device_->MakeContext(nullptr, 0);
      const Status status = FindBestProduct(std::get<MatmulAttrs>(case_.attrs), views_,
                                            workspace_.get(), context.stream, &best_product_);
      if (!status.ok()) return status;
    }
    return best_product_->Time(calls, seconds);
  }

  Status CopyRate(int64_t bytes, double* rate) override {
    Memory from, to;
    Status status = Allocate(bytes, &from);
    if (status.ok()) status = Allocate(bytes, &to);
    if (!status.ok()) return status;
    const cuda::Context context = device_->MakeContext(nullptr, 0);
    constexpr int kCopies = 10;
    double seconds = 0;
    status = stopwatch_.Time(
        context.stream, kCopies,
        [&] {
          return Check(cudaMemcpyAsync(to.get(), from.get(), static_cast<size_t>(bytes),
                                       cudaMemcpyDeviceToDevice, context.stream),
                       "copying");
        },
        &seconds);
    *rate = 2.0 * static_cast<double>(bytes) / seconds;
    return status;
  }

 private:
  using Kernel = decltype(cuda::Find(Op::kMatmul));
  Kernel Find() const { return cuda::Find(case_.op); }

  std::unique_ptr<cuda::Device> device_;
  Stopwatch stopwatch_;
  bool wgmma_ = false;
  Case case_;
  std::vector<TensorView> views_;
  std::vector<Memory> memory_;
  Memory workspace_;
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<BestProduct> best_product_;  // of the case that is prepared
};

}  // namespace

Status OpenGpu(std::unique_ptr<Machine>* machine) {
  std::unique_ptr<cuda::Device> device;
  const Status status = cuda::Device::Open(0, &device);
  if (status.ok()) *machine = std::make_unique<Gpu>(std::move(device));
  return status;
}

}  // namespace terrace::kernels::bench
