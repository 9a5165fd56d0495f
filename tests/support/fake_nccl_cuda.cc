// Streams, events and memory of the fake CUDA: threads, flags and malloc.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl_cuda.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/support/fake_nccl.h"

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool ends = false;
  std::thread thread;

  void Main() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ends || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }
};

struct CUevent_st {
  std::shared_ptr<std::atomic<bool>> happened = std::make_shared<std::atomic<bool>>(true);
};

namespace terrace::fake_nccl {
namespace {

std::atomic<int> live_streams{0}, live_events{0}, live_allocations{0};
thread_local int current_device = 0;

cudaError_t Allocate(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  ++live_allocations;
  return cudaSuccess;
}

cudaError_t Free(void* memory) {
  if (memory != nullptr) --live_allocations;
  std::free(memory);
  return cudaSuccess;
}

}  // namespace

void Enqueue(CUstream_st* stream, std::function<void()> work) {
  const std::lock_guard lock(stream->mutex);
  stream->work.push_back(std::move(work));
  stream->changed.notify_all();
}

int CurrentDevice() { return current_device; }

void CountCuda(int* streams, int* events, int* allocations) {
  *streams = live_streams;
  *events = live_events;
  *allocations = live_allocations;
}

CUstream_st* NewStream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

void FreeStream(CUstream_st* stream) { cudaStreamDestroy(stream); }

void SetDevice(int device) { cudaSetDevice(device); }

}  // namespace terrace::fake_nccl

using terrace::fake_nccl::Enqueue;

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = terrace::fake_nccl::current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  terrace::fake_nccl::current_device = device;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = new CUstream_st();
  (*stream)->thread = std::thread(&CUstream_st::Main, *stream);
  ++terrace::fake_nccl::live_streams;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(stream->mutex);
    stream->ends = true;
    stream->changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  --terrace::fake_nccl::live_streams;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::promise<void> reached;
  Enqueue(stream, [&] { reached.set_value(); });
  reached.get_future().wait();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new CUevent_st();
  ++terrace::fake_nccl::live_events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --terrace::fake_nccl::live_events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->happened = std::make_shared<std::atomic<bool>>(false);
  Enqueue(stream, [happened = event->happened] { *happened = true; });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return *event->happened ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return terrace::fake_nccl::Allocate(memory, bytes);
}
cudaError_t cudaFree(void* memory) { return terrace::fake_nccl::Free(memory); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) {
  return terrace::fake_nccl::Allocate(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return terrace::fake_nccl::Free(memory); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Enqueue(stream, [=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the fake CUDA";
}

}  // extern "C"
