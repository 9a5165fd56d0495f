// CUDA's calls, answered by the fake device.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/unit/kernels/cuda/simt/fake_state.h"

using namespace terrace::simt;  // NOLINT: the names below are CUDA's own

namespace {

constexpr std::chrono::milliseconds kDoze{2};
constexpr int kPatience = 64;  // questions after the last record that an event may leave open

// What the default stream owes: calls on it return before the device has what they bring.
void FinishDefaultStream() {
  for (const auto& work : std::exchange(TheFake().unfinished, {})) {
    const Access access;
    work();
  }
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "another error";
  }
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheFake().options.driver ? TheFake().options.driver_version : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return TheFake().options.has_code ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheFake().options.devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {.name = "NVIDIA Fake 1GB",
                 .totalGlobalMem = static_cast<size_t>(TheFake().options.memory_bytes),
                 .major = TheFake().options.capability / 10,
                 .minor = TheFake().options.capability % 10,
                 .multiProcessorCount = 4,
                 .uuid = {}};
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  return device < TheFake().options.devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int* device) {
  *device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device >= TheFake().options.devices) return cudaErrorInvalidDevice;
  CurrentDevice() = device;
  return cudaSuccess;
}

// Everything, in an order of the fake's own.
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(TheFake().mutex);
  if (BreaksCapture()) return cudaErrorStreamCaptureUnsupported;
  for (CUstream_st* stream : TheFake().streams) ExecuteUpTo(stream, TheFake().next);
  FinishDefaultStream();
  return State();
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const std::lock_guard lock(TheFake().mutex);
  const DeviceOptions& options = TheFake().options;
  *total_bytes = static_cast<size_t>(options.memory_bytes);
  *free_bytes =
      static_cast<size_t>(options.memory_bytes - options.context_bytes - TheFake().used_bytes);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const DeviceOptions& options = fake.options;
  if (BreaksCapture()) return cudaErrorStreamCaptureUnsupported;
  if (fake.used_bytes + static_cast<int64_t>(bytes) > options.memory_bytes - options.context_bytes)
    return cudaErrorMemoryAllocation;
  char* const block = MapMemory(bytes);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  fake.memory.emplace(block, bytes);
  fake.used_bytes += static_cast<int64_t>(bytes);
  *data = block;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  cudaDeviceSynchronize();
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const auto block = fake.memory.find(static_cast<char*>(data));
  if (block == fake.memory.end()) return cudaErrorInvalidValue;
  UnmapMemory(block->first, block->second);
  fake.used_bytes -= static_cast<int64_t>(block->second);
  fake.memory.erase(block);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = std::malloc(bytes);
  std::memset(*data, 0xff, bytes);
  const std::lock_guard lock(TheFake().mutex);
  TheFake().pinned.emplace(static_cast<char*>(*data), bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  cudaHostUnregister(data);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  const std::lock_guard lock(TheFake().mutex);
  TheFake().pinned.emplace(static_cast<char*>(data), bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  const std::lock_guard lock(TheFake().mutex);
  return TheFake().pinned.erase(static_cast<char*>(data)) == 1 ? cudaSuccess
                                                               : cudaErrorInvalidValue;
}

// Ahead of all that is queued: nothing orders it but those who call it. To the host it is done when
// it returns; what goes to the device has only been read.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const std::lock_guard lock(TheFake().mutex);
  if (BreaksCapture()) return cudaErrorStreamCaptureUnsupported;
  if (State() != cudaSuccess) return State();
  FinishDefaultStream();
  const Access access;
  if (!OnDevice(to, bytes)) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  }
  const char* const first = static_cast<const char*>(from);
  TheFake().unfinished.push_back([to, read = std::vector<char>(first, first + bytes)] {
    std::memcpy(to, read.data(), read.size());
  });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  const std::lock_guard lock(TheFake().mutex);
  if (BreaksCapture()) return cudaErrorStreamCaptureUnsupported;
  if (!OnDevice(data, bytes)) return cudaErrorInvalidValue;
  TheFake().unfinished.push_back([=] { std::memset(data, value, bytes); });
  return State();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(TheFake().mutex);
  *stream =
      new CUstream_st{.device = CurrentDevice(), .made = ++TheFake().counts.streams, .entries = {}};
  TheFake().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(TheFake().mutex);
  ExecuteUpTo(stream, TheFake().next);
  TheFake().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(TheFake().mutex);
  if (stream == nullptr) {
    FinishDefaultStream();
    return State();
  }
  if (stream->capture != nullptr) {
    stream->capture->broken = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  ExecuteUpTo(stream, TheFake().next);
  return State();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (++fake.counts.waits == fake.options.dropped_wait) return cudaSuccess;
  if (stream->capture != nullptr || event->captured != 0) return CaptureWait(stream, *event);
  if (event->recorded == 0) return cudaSuccess;
  return Add(stream, {.event = event, .generation = event->recorded, .waits = true});
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const std::lock_guard lock(TheFake().mutex);
  if (!Reachable(to, bytes) || !Reachable(from, bytes)) return cudaErrorInvalidValue;
  return Add(stream, {.work = [=] { std::memcpy(to, from, bytes); }});
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(TheFake().mutex);
  if (!OnDevice(data, bytes)) return cudaErrorInvalidValue;
  return Add(stream, {.work = [=] { std::memset(data, value, bytes); }});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(TheFake().mutex);
  if (event->passed < event->recorded) PassEvent(event, event->recorded);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(TheFake().mutex);
  event->captured = stream->capture == nullptr ? 0 : stream->capture->number;
  if (event->captured != 0) {
    event->captured_after = stream->after;
    return cudaSuccess;
  }
  const int64_t generation = event->recorded + 1;
  // Before it is added: it may pass at once.
  event->stream = stream;
  event->recorded = generation;
  event->queries = 0;
  const cudaError_t error = Add(stream, {.event = event, .generation = generation});
  if (error != cudaSuccess) --event->recorded;
  return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Fake& fake = TheFake();
  if (fake.options.slow_stream > 0 && event->stream->made == fake.options.slow_stream)
    std::this_thread::sleep_for(kDoze);
  const std::lock_guard lock(fake.mutex);
  if (event->captured != 0) return cudaErrorCapturedEvent;
  if (++fake.counts.syncs != fake.options.dropped_sync) PassEvent(event, event->recorded);
  return State();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(TheFake().mutex);
  if (event->captured != 0) return cudaErrorCapturedEvent;
  if (State() != cudaSuccess) return State();
  if (event->passed < event->recorded && ++event->queries > kPatience)
    PassEvent(event, event->recorded);
  return event->passed == event->recorded ? State() : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const std::lock_guard lock(TheFake().mutex);
  if (start->captured != 0 || end->captured != 0) return cudaErrorCapturedEvent;
  *milliseconds = static_cast<float>(end->passed_at_ms - start->passed_at_ms);
  return State();
}
