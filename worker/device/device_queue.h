// A queue of a device that is not the host: a stream of a program whose instructions are launched
// by its thread and executed by the device, in order, whenever what they wait for has ended.
//
// Positions count the instructions of the present run: position p is marked when the first p have
// been launched. Other queues wait for marks on the device; the stream's thread learns from them
// what has finished. With room for n marks position p takes that of p - n, which must have
// finished: who waits for it from then on waits for p.
//
// Thread rule: used by the thread of its stream. After may name a queue of another thread, at a
// position that was marked before.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kernels/cuda/context.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace terrace {

// A kernel with all that it is called with: what a compute instruction is to a device.
struct KernelCall {
  kernels::cuda::Kernel device_kernel = nullptr;
  kernels::OpAttrs attrs;
  kernels::Context context;  // on a device its workspace alone counts
  // What lies on NVMe has no address: its data is null.
  std::vector<kernels::TensorView> operands;
};

// A run's worth of work of several queues that is launched as one. Thread-compatible.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // Room for so many marks, besides that of position 0; nothing below allocates.
  virtual absl::Status Reserve(int32_t marks) = 0;
  // Fills what Compute needs for an op with the attributes that `out` has. UNIMPLEMENTED where the
  // device has no kernel for the op.
  virtual absl::Status PrepareCompute(kernels::Op op, KernelCall* out) const = 0;

  // Before the first instruction of a run, when the queue is empty.
  virtual absl::Status Begin(const Clock& clock) = 0;
  virtual absl::Status Compute(const KernelCall& call) = 0;
  // Between device memory and what the backend has pinned.
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes) = 0;
  virtual absl::Status Zero(void* data, int64_t bytes) = 0;
  virtual absl::Status Mark(int32_t position) = 0;
  virtual absl::Status After(const DeviceQueue& other, int32_t position) = 0;

  virtual absl::StatusOr<bool> IsFinished(int32_t position) = 0;
  // Blocks until it is; when that was, in nanoseconds of Begin's clock.
  virtual absl::StatusOr<int64_t> Finish(int32_t position) = 0;
  // Blocks until nothing runs here any more, whether it was marked or not.
  virtual absl::Status Drain() = 0;

  // From here to EndCapture, which comes from the same thread, nothing is executed: it is written
  // down what is asked of this queue and of those that wait for a mark which was set since. All of
  // them must have been waited for at the end. EndCapture also after a failure: it ends it.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() = 0;
  // Of a graph of this backend.
  virtual absl::Status Launch(const DeviceGraph& graph) = 0;
};

}  // namespace terrace
