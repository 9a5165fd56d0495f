// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/queue.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace terrace::kernels::cuda {

Status Queue::Create(std::unique_ptr<Queue>* queue) {
  std::unique_ptr<Queue> made(new Queue());
  // Non-blocking: it owes nothing to the default stream, which copies of checkpoints use.
  Status status = Check(cudaStreamCreateWithFlags(&made->stream_, cudaStreamNonBlocking),
                        "cudaStreamCreateWithFlags");
  if (status.ok()) *queue = std::move(made);
  return status;
}

std::unique_ptr<Queue> Queue::On(CUstream_st* stream) {
  std::unique_ptr<Queue> made(new Queue());
  made->stream_ = stream;
  made->borrows_ = true;
  return made;
}

Queue::~Queue() {
  for (CUevent_st* event : events_) cudaEventDestroy(event);
  if (stream_ != nullptr && !borrows_) cudaStreamDestroy(stream_);
}

Status Queue::Reserve(int count) {
  while (static_cast<int>(events_.size()) < count) {
    CUevent_st* event = nullptr;
    // Who waits for it sleeps: the cores belong to host computation and to other ranks.
    Status status =
        Check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "cudaEventCreateWithFlags");
    if (!status.ok()) return status;
    events_.push_back(event);
  }
  return {};
}

Status Queue::Mark(int mark) {
  return Check(cudaEventRecord(events_[mark], stream_), "cudaEventRecord");
}

Status Queue::After(const Queue& other, int mark) {
  return Check(cudaStreamWaitEvent(stream_, other.events_[mark], 0), "cudaStreamWaitEvent");
}

Status Queue::Finish(int mark) { return Check(cudaEventSynchronize(events_[mark]), "the device"); }

Status Queue::IsFinished(int mark, bool* finished) {
  const cudaError_t error = cudaEventQuery(events_[mark]);
  *finished = error == cudaSuccess;
  return error == cudaErrorNotReady ? Status() : Check(error, "the device");
}

Status Queue::Between(int first, int last, double* seconds) const {
  float milliseconds = 0;
  Status status = Check(cudaEventElapsedTime(&milliseconds, events_[first], events_[last]),
                        "cudaEventElapsedTime");
  *seconds = static_cast<double>(milliseconds) * 1e-3;
  return status;
}

Status Queue::Copy(void* to, const void* from, int64_t bytes) {
  return Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_),
               "cudaMemcpyAsync");
}

Status Queue::Zero(void* data, int64_t bytes) {
  return Check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
}

Status Queue::Drain() { return Check(cudaStreamSynchronize(stream_), "the device"); }

}  // namespace terrace::kernels::cuda
