// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/cuda/simt/fake_device.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/unit/kernels/cuda/simt/fake_state.h"

namespace terrace::simt {
namespace {

// Huge pages, so that making all of it accessible takes little.
constexpr size_t kPage = 2 << 20;

thread_local int current_device = 0;

size_t Pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void Protect(int protection) {
  for (const auto& [data, bytes] : TheFake().memory) {
    if (mprotect(data, Pages(bytes), protection) != 0) std::abort();
  }
  for (const auto& [data, mapping] : TheFake().mappings) {
    if (mapping.accessible && mprotect(data, mapping.bytes, protection) != 0) std::abort();
  }
}

bool OnPages(const void* data, size_t bytes) {
  const auto& mappings = TheFake().mappings;
  const char* at = static_cast<const char*>(data);
  const char* const end = at + bytes;
  auto page = mappings.upper_bound(const_cast<char*>(at));
  if (page == mappings.begin()) return false;
  for (--page; page != mappings.end() && page->second.accessible && page->first <= at; ++page) {
    at = std::max<const char*>(at, page->first + page->second.bytes);
    if (at >= end) return true;
  }
  return false;
}

bool Inside(const std::map<char*, size_t>& blocks, const void* data, size_t bytes) {
  char* const first = static_cast<char*>(const_cast<void*>(data));
  auto block = blocks.upper_bound(first);
  if (block == blocks.begin()) return false;
  --block;
  return first + bytes <= block->first + block->second;
}

double NowMs() {
  if (TheFake().options.ms_per_work > 0) return TheFake().clock_ms;
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
  Entry entry = std::move(stream->entries.front());
  stream->entries.pop_front();
  if (entry.work) {
    CountReordering(*stream, entry.number);
    Work(entry.work);
  } else if (!entry.waits) {
    entry.event->passed = std::max(entry.event->passed, entry.generation);
    entry.event->passed_at_ms = NowMs();
  }
}

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "fake device: %s\n", what);
  std::abort();
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

}  // namespace

Fake& TheFake() {
  static Fake* fake = new Fake;  // streams may outlive main
  return *fake;
}

int& CurrentDevice() { return current_device; }

void Work(const std::function<void()>& work) {
  Fake& fake = TheFake();
  ++fake.counts.work;
  fake.failed = fake.failed || fake.counts.work == fake.options.failing_launch;
  if (fake.failed) return;
  fake.clock_ms += fake.options.ms_per_work;
  const Access access;
  work();
}

Access::Access() {
  if (TheFake().open++ == 0) Protect(PROT_READ | PROT_WRITE);
}
Access::~Access() {
  if (--TheFake().open == 0) Protect(PROT_NONE);
}

char* MapMemory(size_t bytes) {
  const size_t whole = Pages(bytes) + kPage;
  void* const span = mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (span == MAP_FAILED) return nullptr;
  char* const first = static_cast<char*>(span);
  const size_t slack = (kPage - reinterpret_cast<uintptr_t>(first) % kPage) % kPage;
  char* const data = first + slack;
  if (slack > 0) munmap(first, slack);
  if (slack < kPage) munmap(data + Pages(bytes), kPage - slack);
  madvise(data, Pages(bytes), MADV_HUGEPAGE);
  std::memset(data, kPoison, bytes);
  mprotect(data, Pages(bytes), PROT_NONE);
  return data;
}

void UnmapMemory(char* data, size_t bytes) { munmap(data, Pages(bytes)); }

bool OnDevice(const void* data, size_t bytes) {
  return Inside(TheFake().memory, data, bytes) || OnPages(data, bytes);
}
bool Reachable(const void* data, size_t bytes) {
  return OnDevice(data, bytes) || Inside(TheFake().pinned, data, bytes);
}

void ExecuteUpTo(CUstream_st* stream, int64_t number) {
  while (!stream->entries.empty() && stream->entries.front().number <= number) {
    if (IsBlocked(*stream)) {
      const Entry& head = stream->entries.front();
      PassEvent(head.event, head.generation);
    }
    ExecuteHead(stream);
  }
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
  if (!fake.streams.contains(stream) || stream->device != CurrentDevice()) {
    return cudaErrorInvalidResourceHandle;
  }
  if (fake.failed) return State();
  if (stream->capture != nullptr) {
    CaptureWork(stream, std::move(entry.work));
    return cudaSuccess;
  }
  entry.number = ++fake.next;
  stream->entries.push_back(std::move(entry));
  if (fake.options.order == DeviceOptions::Order::kEager) ExecuteUpTo(stream, fake.next);
  if (fake.options.order == DeviceOptions::Order::kRandom && fake.random() % 4 == 0) {
    if (!IsBlocked(*stream)) ExecuteHead(stream);
  }
  return cudaSuccess;
}

void ResetDevice(const DeviceOptions& options) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  for (const CUstream_st* stream : fake.streams) {
    if (!stream->entries.empty()) Die("reset while a stream has work");
  }
  fake.options = options;
  fake.counts = {.graphs = fake.counts.graphs};
  fake.unmaps = 0;
  fake.random.seed(options.seed);
  fake.failed = false;
}

DeviceCounts CountsOfDevice() {
  const std::lock_guard lock(TheFake().mutex);
  DeviceCounts counts = TheFake().counts;
  counts.allocations = static_cast<int64_t>(TheFake().memory.size());
  counts.pages = static_cast<int64_t>(TheFake().mappings.size());
  counts.ranges = static_cast<int64_t>(TheFake().ranges.size());
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
