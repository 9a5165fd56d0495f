// A device queue on a CUDA stream.
//
// Mark 0 of the stream is the start of a run, from which the device counts time; positions take the
// others in turn. Borrows the device. Thread rule: as DeviceQueue.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/queue.h"
#include "worker/device/device_queue.h"

namespace terrace {

// INTERNAL with what CUDA says; fine where it is fine.
absl::Status OfCuda(const kernels::Status& status);

class CudaQueue final : public DeviceQueue {
 public:
  CudaQueue(const kernels::cuda::Device& device, std::unique_ptr<kernels::cuda::Queue> queue)
      : device_(device), queue_(std::move(queue)) {}

  absl::Status Reserve(int32_t marks) override;
  absl::Status PrepareCompute(kernels::Op op, KernelCall* out) const override;
  absl::Status Begin(const Clock& clock) override;
  absl::Status Compute(const KernelCall& call) override;
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::Status Zero(void* data, int64_t bytes) override;
  absl::Status Mark(int32_t position) override;
  absl::Status After(const DeviceQueue& other, int32_t position) override;
  absl::StatusOr<bool> IsFinished(int32_t position) override;
  absl::StatusOr<int64_t> Finish(int32_t position) override;
  absl::Status Drain() override;
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override;
  absl::Status Launch(const DeviceGraph& graph) override;

 private:
  const kernels::cuda::Device& device_;
  const std::unique_ptr<kernels::cuda::Queue> queue_;
  int MarkOf(int32_t position) const { return position == 0 ? 0 : 1 + (position - 1) % marks_; }

  int64_t begin_ns_ = 0;  // when mark 0 was passed
  int32_t marks_ = 1;     // besides mark 0
};

}  // namespace terrace
