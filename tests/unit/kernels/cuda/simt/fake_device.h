// A GPU for tests without one: memory that the host cannot touch, streams that are executed late
// and in an order that nobody can rely on, calls that fail.
//
// Memory from cudaMalloc is inaccessible but while the device executes something, and full of
// poison at first. What is queued is executed when somebody waits for it, inside that call: nothing
// more than it needs (kLazy), in random order of streams with some that nobody asked for (kRandom),
// or at once (kEager). Whoever forgets to wait for something finds that it has not happened. Copies
// of memory that is neither the device's nor pinned are refused, and so is the use of a stream by a
// thread whose device is another.
//
// Pages of cuMem* are memory only once they are mapped and access was granted, each mapping goes as
// a whole, and addresses are given back only when nothing is mapped there.
//
// What a capture writes down keeps to the edges that streams and events gave it and to nothing
// else: a graph's nodes are executed newest first (kLazy), in random order (kRandom) or as captured
// (kEager), as far as edges allow. Calls that CUDA forbids meanwhile break the capture.
//
// One device for the process. Thread-safe; kernels are executed one at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "tests/unit/kernels/cuda/simt/cuda_runtime_api.h"

namespace terrace::simt {

struct DeviceOptions {
  enum class Order { kLazy, kRandom, kEager } order = Order::kLazy;
  unsigned seed = 1;
  bool driver = true;
  int driver_version = 13000;  // that of the runtime
  bool has_code = true;        // kernels can be loaded
  int devices = 2;
  int capability = 90;  // to compute
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t context_bytes = 300 << 20;  // that the driver takes of it
  // Numbers of calls, from 1 on, that are answered but not carried out; 0: none.
  int64_t dropped_wait = 0;    // cudaStreamWaitEvent
  int64_t dropped_sync = 0;    // cudaEventSynchronize
  int64_t failing_launch = 0;  // the n-th piece of work ends in an error, as all after it
  // Who waits for a mark of this stream, the n-th that was made since ResetDevice, dozes off first.
  int64_t slow_stream = 0;
  int64_t graph_bytes = 0;  // of device memory that a graph takes
  bool maps_pages = true;
  bool shares_memory = true;     // with other processes
  int64_t failing_unmap = 0;     // the n-th cuMemUnmap is refused
  int64_t page_bytes = 2 << 20;  // that it maps at the least
  double ms_per_work = 0;        // of a clock that only work moves; 0: the host's clock
};
// For everything from now on. REQUIRES: no stream has work.
void ResetDevice(const DeviceOptions& options);

struct DeviceCounts {
  int64_t streams = 0, waits = 0, syncs = 0, work = 0;  // since ResetDevice
  int64_t reorderings = 0;         // work executed before earlier work of another stream
  int64_t allocations = 0;         // of device memory, there now
  int64_t pages = 0;               // mapped now
  int64_t ranges = 0;              // of addresses, there now
  int64_t shared_allocations = 0;  // of cuMemCreate that other processes can be let at
  int64_t graphs = 0;              // there now
  int64_t graph_launches = 0;
};
DeviceCounts CountsOfDevice();

// Asks the stream for a piece of work; at once where `stream` is null. Device memory is accessible
// while it runs.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace terrace::simt
