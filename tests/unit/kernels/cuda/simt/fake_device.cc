// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/cuda/simt/fake_device.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

struct CUevent_st {
  int64_t recorded = 0, passed = 0;  // times
  cudaStream_t stream = nullptr;     // that recorded it last
  double passed_at_ms = 0;
};

// One entry of a stream: work, a mark, or a wait for a mark.
struct Entry {
  int64_t number = 0;  // in the order of asking, over all streams
  std::function<void()> work;
  CUevent_st* event = nullptr;
  int64_t generation = 0;  // of the event: how many records of it must have passed
  bool waits = false;
};
struct CUstream_st {
  int device = 0;
  int64_t made = 0;  // number
  std::deque<Entry> entries;
};

namespace terrace::simt {
namespace {

constexpr int kPoison = 0xff;  // NaN in f32 and bf16, -1 as an index
constexpr size_t kPage = 4096;
constexpr std::chrono::milliseconds kDoze{2};

thread_local int current_device = 0;

struct Fake {
  std::recursive_mutex mutex;
  DeviceOptions options;
  DeviceCounts counts;
  std::mt19937 random;
  std::set<CUstream_st*> streams;
  std::map<char*, size_t> memory;  // of the device
  std::map<char*, size_t> pinned;
  int64_t next = 0;
  int64_t used_bytes = 0;
  int open = 0;  // depth of those who execute something
  bool failed = false;
};

Fake& TheFake() {
  static Fake* fake = new Fake;  // streams may outlive main
  return *fake;
}

size_t Pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// While it lives device memory can be touched.
class Access {
 public:
  Access() {
    if (TheFake().open++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  ~Access() {
    if (--TheFake().open == 0) Protect(PROT_NONE);
  }

 private:
  static void Protect(int protection) {
    for (const auto& [data, bytes] : TheFake().memory) {
      if (mprotect(data, Pages(bytes), protection) != 0) std::abort();
    }
  }
};

bool Inside(const std::map<char*, size_t>& blocks, const void* data, size_t bytes) {
  char* const first = static_cast<char*>(const_cast<void*>(data));
  auto block = blocks.upper_bound(first);
  if (block == blocks.begin()) return false;
  --block;
  return first + bytes <= block->first + block->second;
}

bool OnDevice(const void* data, size_t bytes) { return Inside(TheFake().memory, data, bytes); }
bool Reachable(const void* data, size_t bytes) {
  return OnDevice(data, bytes) || Inside(TheFake().pinned, data, bytes);
}

double NowMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool IsBlocked(const CUstream_st& stream) {
  const Entry& head = stream.entries.front();
  return head.waits && head.event->passed < head.generation;
}

void CountReordering(const CUstream_st& mine, int64_t number) {
  for (const CUstream_st* stream : TheFake().streams) {
    if (stream == &mine || stream->entries.empty()) continue;
    if (stream->entries.front().number < number) {
      ++TheFake().counts.reorderings;
      return;
    }
  }
}

// REQUIRES: the stream has a head that is not blocked.
void ExecuteHead(CUstream_st* stream) {
  Fake& fake = TheFake();
  Entry entry = std::move(stream->entries.front());
  stream->entries.pop_front();
  if (entry.work) {
    CountReordering(*stream, entry.number);
    ++fake.counts.work;
    fake.failed = fake.failed || fake.counts.work == fake.options.failing_launch;
    if (fake.failed) return;
    const Access access;
    entry.work();
  } else if (!entry.waits) {
    entry.event->passed = std::max(entry.event->passed, entry.generation);
    entry.event->passed_at_ms = NowMs();
  }
}

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "fake device: %s\n", what);
  std::abort();
}

void PassEvent(CUevent_st* event, int64_t generation);

// No more than is needed for the stream's entries up to `number`.
void ExecuteUpTo(CUstream_st* stream, int64_t number) {
  while (!stream->entries.empty() && stream->entries.front().number <= number) {
    if (IsBlocked(*stream)) {
      const Entry& head = stream->entries.front();
      PassEvent(head.event, head.generation);
    }
    ExecuteHead(stream);
  }
}

void ExecuteSomething() {
  Fake& fake = TheFake();
  std::vector<CUstream_st*> ready;
  for (CUstream_st* stream : fake.streams) {
    if (!stream->entries.empty() && !IsBlocked(*stream)) ready.push_back(stream);
  }
  if (ready.empty()) Die("all streams wait for each other");
  ExecuteHead(ready[fake.random() % ready.size()]);
}

void PassEvent(CUevent_st* event, int64_t generation) {
  if (TheFake().options.order == DeviceOptions::Order::kRandom) {
    while (event->passed < generation) ExecuteSomething();
    return;
  }
  while (event->passed < generation) {
    // The record that is waited for is in the stream that recorded it.
    int64_t number = -1;
    for (const Entry& entry : event->stream->entries) {
      if (!entry.waits && entry.event == event && entry.generation == generation) {
        number = entry.number;
      }
    }
    if (number < 0) Die("an event was recorded again in another stream while it was waited for");
    ExecuteUpTo(event->stream, number);
  }
}

cudaError_t State() { return TheFake().failed ? cudaErrorLaunchFailure : cudaSuccess; }

cudaError_t Add(cudaStream_t stream, Entry entry) {
  Fake& fake = TheFake();
  if (!fake.streams.contains(stream) || stream->device != current_device) {
    return cudaErrorInvalidResourceHandle;
  }
  if (fake.failed) return State();
  entry.number = ++fake.next;
  stream->entries.push_back(std::move(entry));
  if (fake.options.order == DeviceOptions::Order::kEager) ExecuteUpTo(stream, fake.next);
  if (fake.options.order == DeviceOptions::Order::kRandom && fake.random() % 4 == 0) {
    if (!IsBlocked(*stream)) ExecuteHead(stream);
  }
  return cudaSuccess;
}

}  // namespace

void ResetDevice(const DeviceOptions& options) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  for (const CUstream_st* stream : fake.streams) {
    if (!stream->entries.empty()) Die("reset while a stream has work");
  }
  fake.options = options;
  fake.counts = {};
  fake.random.seed(options.seed);
  fake.failed = false;
}

DeviceCounts CountsOfDevice() {
  const std::lock_guard lock(TheFake().mutex);
  DeviceCounts counts = TheFake().counts;
  counts.allocations = static_cast<int64_t>(TheFake().memory.size());
  return counts;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) {
    work();
    return cudaSuccess;
  }
  const std::lock_guard lock(TheFake().mutex);
  return Add(stream, {.work = std::move(work)});
}

}  // namespace terrace::simt

using namespace terrace::simt;  // NOLINT: the names below are CUDA's own

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
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "another error";
  }
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheFake().options.driver ? 13000 : 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheFake().options.devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {.name = "NVIDIA Fake 1GB",
                 .totalGlobalMem = static_cast<size_t>(TheFake().options.memory_bytes),
                 .major = 9,
                 .minor = 0,
                 .multiProcessorCount = 4,
                 .uuid = {}};
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  return device < TheFake().options.devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device >= TheFake().options.devices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}

// Everything, in an order of the fake's own.
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(TheFake().mutex);
  for (CUstream_st* stream : TheFake().streams) ExecuteUpTo(stream, TheFake().next);
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
  if (fake.used_bytes + static_cast<int64_t>(bytes) > options.memory_bytes - options.context_bytes)
    return cudaErrorMemoryAllocation;
  void* const block =
      mmap(nullptr, Pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::memset(block, kPoison, bytes);
  mprotect(block, Pages(bytes), PROT_NONE);
  fake.memory.emplace(static_cast<char*>(block), bytes);
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
  munmap(data, Pages(block->second));
  fake.used_bytes -= static_cast<int64_t>(block->second);
  fake.memory.erase(block);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = std::malloc(bytes);
  std::memset(*data, kPoison, bytes);
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

// At once, ahead of all that is queued: nothing orders it but those who call it.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const std::lock_guard lock(TheFake().mutex);
  if (State() != cudaSuccess) return State();
  const Access access;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  const std::lock_guard lock(TheFake().mutex);
  if (!OnDevice(data, bytes)) return cudaErrorInvalidValue;
  const Access access;
  std::memset(data, value, bytes);
  return State();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(TheFake().mutex);
  *stream =
      new CUstream_st{.device = current_device, .made = ++TheFake().counts.streams, .entries = {}};
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
  if (stream == nullptr) return cudaSuccess;  // all that goes there is done at once
  const std::lock_guard lock(TheFake().mutex);
  ExecuteUpTo(stream, TheFake().next);
  return State();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (++fake.counts.waits == fake.options.dropped_wait || event->recorded == 0) return cudaSuccess;
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
  const int64_t generation = event->recorded + 1;
  // Before it is added: it may pass at once.
  event->stream = stream;
  event->recorded = generation;
  const cudaError_t error = Add(stream, {.event = event, .generation = generation});
  if (error != cudaSuccess) --event->recorded;
  return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Fake& fake = TheFake();
  if (fake.options.slow_stream > 0 && event->stream->made == fake.options.slow_stream)
    std::this_thread::sleep_for(kDoze);
  const std::lock_guard lock(fake.mutex);
  if (++fake.counts.syncs != fake.options.dropped_sync) PassEvent(event, event->recorded);
  return State();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(TheFake().mutex);
  if (State() != cudaSuccess) return State();
  return event->passed == event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const std::lock_guard lock(TheFake().mutex);
  *milliseconds = static_cast<float>(end->passed_at_ms - start->passed_at_ms);
  return State();
}
