// What the fake device is made of: streams and their entries, memory, and how entries are executed.
// For fake_device.cc, which executes, and fake_runtime.cc, which answers CUDA's calls.
//
// Thread rule: everything under TheFake().mutex.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/unit/kernels/cuda/simt/fake_device.h"

struct Capture;

struct CUevent_st {
  int64_t recorded = 0, passed = 0;  // times
  int queries = 0;                   // since the last record
  // Of the last record, where it was captured: the number of the capture and the nodes before it.
  int64_t captured = 0;
  std::vector<size_t> captured_after;
  cudaStream_t stream = nullptr;  // that recorded it last
  double passed_at_ms = 0;
};

// One entry of a stream: work, a mark, or a wait for a mark.
struct Entry {
  int64_t number = 0;  // in the order of asking, over all streams
  std::function<void()> work = {};
  CUevent_st* event = nullptr;
  int64_t generation = 0;  // of the event: how many records of it must have passed
  bool waits = false;
};
struct CUstream_st {
  int device = 0;
  int64_t made = 0;  // number
  std::deque<Entry> entries;
  Capture* capture = nullptr;
  std::vector<size_t> after = {};  // in a capture: what the next node comes after
};

struct CUgraph_st {
  struct Node {
    std::function<void()> work;
    std::vector<size_t> after;
  };
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<CUgraph_st::Node> nodes;
  int64_t bytes = 0;
};
struct Capture {
  int64_t number = 0;
  CUstream_st* origin = nullptr;
  std::thread::id thread;
  bool broken = false;
  std::set<CUstream_st*> streams;
  CUgraph_st graph;
};

namespace terrace::simt {

// Of cuMemMap.
struct Mapping {
  size_t bytes = 0;
  int64_t handle = 0;
  bool accessible = false;
};
struct PhysicalMemory {
  size_t bytes = 0;
  int uses = 0;      // its handle, and where it is mapped
  off_t offset = 0;  // in the file that all pages lie in: they may have several addresses
};

struct Fake {
  std::recursive_mutex mutex;
  DeviceOptions options;
  DeviceCounts counts;
  std::mt19937 random;
  std::set<CUstream_st*> streams;
  std::map<char*, size_t> memory;  // of the device
  std::map<char*, size_t> pinned;
  std::map<char*, size_t> ranges;  // of addresses without memory
  std::map<char*, Mapping> mappings;
  std::map<int64_t, PhysicalMemory> physical;  // by handle
  int64_t next_handle = 0;
  int64_t unmaps = 0;
  std::vector<std::function<void()>> unfinished;  // of the default stream
  int64_t next = 0;
  int64_t used_bytes = 0;
  double clock_ms = 0;                  // where it has one of its own
  std::map<int64_t, Capture> captures;  // under way, by number
  int64_t next_capture = 0;
  int open = 0;  // depth of those who execute something
  bool failed = false;
};

Fake& TheFake();

// Of the calling thread.
int& CurrentDevice();

// While it lives device memory can be touched.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

inline constexpr int kPoison = 0xff;  // NaN in f32 and bf16, -1 as an index
// Device memory, inaccessible and full of it; null when the system has none.
char* MapMemory(size_t bytes);
void UnmapMemory(char* data, size_t bytes);

// Within one allocation of the device or pages that lie behind each other; or of what is pinned.
bool OnDevice(const void* data, size_t bytes);
bool Reachable(const void* data, size_t bytes);

// An error once anything has failed.
cudaError_t State();
cudaError_t Add(cudaStream_t stream, Entry entry);
// One piece of work of the device; nothing after a failure.
void Work(const std::function<void()>& work);
// Breaks the captures of the calling thread, if it has any: it has done what cannot be captured.
bool BreaksCapture();
// In a capture, what happens to the stream instead.
void CaptureWork(CUstream_st* stream, std::function<void()> work);
cudaError_t CaptureWait(CUstream_st* stream, const CUevent_st& event);
// No more than is needed for the stream's entries up to `number`.
void ExecuteUpTo(CUstream_st* stream, int64_t number);
// Until the event's record of that generation has passed.
void PassEvent(CUevent_st* event, int64_t generation);

}  // namespace terrace::simt
