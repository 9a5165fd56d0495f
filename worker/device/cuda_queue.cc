// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/registry.h"
#include "worker/memory/step_scope.h"

namespace terrace {
namespace {

struct CudaGraph final : DeviceGraph {
  std::unique_ptr<kernels::cuda::Graph> graph;
};

}  // namespace

absl::Status OfCuda(const kernels::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.message);
}

absl::Status CudaQueue::Reserve(int32_t marks) {
  marks_ = std::max(marks_, marks);
  return OfCuda(queue_->Reserve(marks_ + 1));
}

absl::Status CudaQueue::PrepareCompute(kernels::Op op, KernelCall* out) const {
  if (const kernels::Status supported = kernels::cuda::CheckSupported({&op, 1}); !supported.ok())
    return absl::UnimplementedError(supported.message);
  if (const auto* matmul = std::get_if<kernels::MatmulAttrs>(&out->attrs);
      matmul != nullptr && matmul->precision == kernels::MatmulPrecision::kFP8) {
    const kernels::Status fp8 = device_.CheckFp8();
    if (!fp8.ok()) return absl::UnimplementedError(fp8.message);
  }
  out->device_kernel = kernels::cuda::Find(op);
  return absl::OkStatus();
}

absl::Status CudaQueue::Begin(const Clock& clock) {
  const LibraryScope library;
  RETURN_IF_ERROR(Mark(0));
  RETURN_IF_ERROR(OfCuda(queue_->Finish(0)));
  begin_ns_ = clock.MonotonicNanos();
  return absl::OkStatus();
}

// The driver keeps books of what it launches.
absl::Status CudaQueue::Compute(const KernelCall& call) {
  const LibraryScope library;
  return OfCuda(call.device_kernel(
      call.attrs, call.operands,
      device_.MakeContext(queue_->stream(), call.context.workspace, call.context.workspace_bytes)));
}

absl::Status CudaQueue::Copy(void* to, const void* from, int64_t bytes) {
  const LibraryScope library;
  return OfCuda(queue_->Copy(to, from, bytes));
}

absl::Status CudaQueue::Zero(void* data, int64_t bytes) {
  const LibraryScope library;
  return OfCuda(queue_->Zero(data, bytes));
}

absl::Status CudaQueue::Mark(int32_t position) {
  const LibraryScope library;
  return OfCuda(queue_->Mark(MarkOf(position)));
}

absl::Status CudaQueue::After(const DeviceQueue& other, int32_t position) {
  const LibraryScope library;
  const auto& queue = static_cast<const CudaQueue&>(other);
  return OfCuda(queue_->After(*queue.queue_, queue.MarkOf(position)));
}

absl::StatusOr<bool> CudaQueue::IsFinished(int32_t position) {
  const LibraryScope library;
  bool finished = false;
  RETURN_IF_ERROR(OfCuda(queue_->IsFinished(MarkOf(position), &finished)));
  return finished;
}

absl::Status CudaQueue::Drain() {
  const LibraryScope library;
  return OfCuda(queue_->Drain());
}

absl::Status CudaQueue::BeginCapture() { return OfCuda(kernels::cuda::Graph::Begin(queue_.get())); }

absl::StatusOr<std::unique_ptr<DeviceGraph>> CudaQueue::EndCapture() {
  auto made = std::make_unique<CudaGraph>();
  RETURN_IF_ERROR(OfCuda(kernels::cuda::Graph::End(queue_.get(), &made->graph)));
  return made;
}

absl::Status CudaQueue::Launch(const DeviceGraph& graph) {
  const LibraryScope library;
  return OfCuda(static_cast<const CudaGraph&>(graph).graph->Launch(queue_.get()));
}

absl::StatusOr<int64_t> CudaQueue::Finish(int32_t position) {
  const LibraryScope library;
  RETURN_IF_ERROR(OfCuda(queue_->Finish(MarkOf(position))));
  double seconds = 0;
  RETURN_IF_ERROR(OfCuda(queue_->Between(0, MarkOf(position), &seconds)));
  return begin_ns_ + static_cast<int64_t>(seconds * 1e9);
}

}  // namespace terrace
