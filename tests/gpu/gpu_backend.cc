// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/registry.h"
#include "kernels/cuda/workspace.h"

namespace terrace::kernels::conformance {
namespace {

Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return {std::string(what) + ": " + cudaGetErrorString(error)};
}

// Poisoned device memory with fences before and behind.
class FencedMemory {
 public:
  FencedMemory(int64_t bytes, int64_t shift) : bytes_(bytes), shift_(shift) {
    status_ = Check(cudaMalloc(reinterpret_cast<void**>(&base_), Total()), "cudaMalloc");
    if (status_.ok()) status_ = Check(cudaMemset(base_, kPoison, Total()), "cudaMemset");
  }
  ~FencedMemory() { cudaFree(base_); }
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  const Status& status() const { return status_; }
  std::byte* data() const { return base_ + kFenceBytes + shift_; }
  bool FencesStand() const {
    return Poisoned(base_, kFenceBytes + shift_) && Poisoned(data() + bytes_, kFenceBytes);
  }

 private:
  static constexpr int64_t kFenceBytes = 4096;
  static constexpr int kPoison = 0xff;

  size_t Total() const { return static_cast<size_t>(bytes_ + shift_ + 2 * kFenceBytes); }
  static bool Poisoned(const std::byte* from, int64_t count) {
    std::vector<std::byte> copy(count);
    return cudaMemcpy(copy.data(), from, count, cudaMemcpyDeviceToHost) == cudaSuccess &&
           std::all_of(copy.begin(), copy.end(),
                       [](std::byte b) { return b == std::byte{kPoison}; });
  }

  const int64_t bytes_, shift_;
  Status status_;
  std::byte* base_ = nullptr;
};

// The operands of one call on the device; those that share host memory share it there.
class DeviceOperands {
 public:
  DeviceOperands(std::span<const TensorView> operands, bool misaligned) {
    for (const TensorView& host : operands) {
      views_.push_back(host);
      if (host.absent()) continue;
      const auto known = std::find(hosts_.begin(), hosts_.end(), host.data);
      const size_t index = static_cast<size_t>(known - hosts_.begin());
      if (known == hosts_.end()) {
        hosts_.push_back(host.data);
        bytes_.push_back(host.SpanBytes());
        memory_.push_back(
            std::make_unique<FencedMemory>(host.SpanBytes(), misaligned ? SizeOf(host.dtype) : 0));
      }
      views_.back().data = memory_[index]->data();
    }
  }

  std::span<const TensorView> views() const { return views_; }
  Status Upload() const {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!memory_[i]->status().ok()) return memory_[i]->status();
      Status status = Check(
          cudaMemcpy(memory_[i]->data(), hosts_[i], bytes_[i], cudaMemcpyHostToDevice), "upload");
      if (!status.ok()) return status;
    }
    // Kernels run on a stream that does not wait for the default one.
    return Check(cudaDeviceSynchronize(), "upload");
  }
  Status Download() const {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      Status status = Check(
          cudaMemcpy(hosts_[i], memory_[i]->data(), bytes_[i], cudaMemcpyDeviceToHost), "download");
      if (!status.ok()) return status;
      if (!memory_[i]->FencesStand()) return {"the kernel wrote outside an operand"};
    }
    return {};
  }

 private:
  std::vector<TensorView> views_;
  std::vector<void*> hosts_;
  std::vector<int64_t> bytes_;
  std::vector<std::unique_ptr<FencedMemory>> memory_;
};

}  // namespace

Status GpuBackend::Open() { return cuda::Device::Open(0, &device_); }

bool GpuBackend::Lost() const { return cudaDeviceSynchronize() != cudaSuccess; }

Backend GpuBackend::Runner(bool misaligned, bool wgmma_attention) {
  return [=, this](Op op, const OpAttrs& attrs, std::span<const TensorView> operands, int) {
    return Run(op, attrs, operands, misaligned, wgmma_attention);
  };
}

Status GpuBackend::Run(Op op, const OpAttrs& attrs, std::span<const TensorView> operands,
                       bool misaligned, bool wgmma_attention) {
  const std::vector<TensorShape> shapes(operands.begin(), operands.end());
  const int64_t bytes = cuda::WorkspaceBytes(op, attrs, shapes);
  const FencedMemory workspace(bytes, 0);
  const DeviceOperands on_device(operands, misaligned);
  Status status = workspace.status();
  if (status.ok()) status = on_device.Upload();
  if (status.ok()) {
    cuda::Context context = device_->MakeContext(workspace.data(), bytes);
    context.wgmma_attention = wgmma_attention;
    status = cuda::Find(op)(attrs, on_device.views(), context);
  }
  if (status.ok()) status = device_->Finish();
  if (status.ok()) status = on_device.Download();
  if (status.ok() && !workspace.FencesStand()) return {"the kernel wrote outside its workspace"};
  return status;
}

}  // namespace terrace::kernels::conformance
