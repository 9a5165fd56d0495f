// One CUDA stream with its marks: places in the stream that others wait for, numbered by the user.
//
// Everything that is asked of a queue is only queued: it is done after what was asked before, and
// after the marks of other queues that it waits for. A mark may be set again; waits that were asked
// for before keep to the old one.
//
// Owns the stream and its events. Thread rule: one thread at a time asks; After may name a queue of
// another thread, whose mark must have been set before.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel.h"

struct CUstream_st;
struct CUevent_st;

namespace terrace::kernels::cuda {

class Queue {
 public:
  // On the calling thread's device.
  static Status Create(std::unique_ptr<Queue>* queue);
  // Marks of its own on a stream that others use too. Borrows the stream.
  static std::unique_ptr<Queue> On(CUstream_st* stream);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  CUstream_st* stream() const { return stream_; }

  // Makes marks [0, count); nothing else allocates.
  Status Reserve(int count);

  // REQUIRES (these and below): mark < what was reserved.
  Status Mark(int mark);
  Status After(const Queue& other, int mark);
  // Blocks the caller, sleeping, until what came before the mark has ended; an error that any work
  // of the device has met.
  Status Finish(int mark);
  Status IsFinished(int mark, bool* finished);
  // From one finished mark to another.
  Status Between(int first, int last, double* seconds) const;

  // To and from device memory and pinned host memory.
  Status Copy(void* to, const void* from, int64_t bytes);
  Status Zero(void* data, int64_t bytes);
  // Blocks until all that was asked has ended.
  Status Drain();

 private:
  Queue() = default;

  CUstream_st* stream_ = nullptr;
  bool borrows_ = false;
  std::vector<CUevent_st*> events_;
};

}  // namespace terrace::kernels::cuda
