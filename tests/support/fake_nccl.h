// NCCL and the few calls of CUDA that worker/comm makes, on host memory, for tests without a GPU:
// linked instead of both libraries. Ranks are threads of one process, each with a device of its own
// number.
//
// Streams and events are real: a stream is a thread that runs what was put on it in order. NCCL is
// as strict as its documentation: a communicator is non-blocking, a call leaves it "in progress"
// and is on the stream only when that has ended, operations of one communicator meet by number, and
// messages wait for each other. What NCCL would punish by hanging, or by wrong results where it was
// told of memory, is written down as misuse.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct CUstream_st;

namespace terrace::fake_nccl {

// One operation of one member, when its turn on the stream has come.
struct Call {
  std::string kind;  // "all-reduce", "messages", "register"
  int rank = 0;      // in its communicator
  int size = 0;
  int64_t number = 0;  // of the member's operations, from 1
};
struct Fault {
  bool hangs = false;  // until the communicator is aborted
  int error = 0;       // an ncclResult_t: reported asynchronously; the operation hangs
  bool skips =
      false;  // of "register", whose error is its answer: it registers nothing, and says so
};
// Asked about every operation; null: nothing fails.
void SetFaults(std::function<Fault(const Call&)> faults);

// The next operation that this thread calls is refused with this ncclResult_t, and not carried out.
void RefuseNext(int error);

// What exists now. All zero again when everything was closed.
struct Live {
  int communicators = 0, streams = 0, events = 0, allocations = 0, registrations = 0;
  bool operator==(const Live&) const = default;
};
Live CountLive();
// Communicators that were ended by ncclCommAbort.
int Aborted();
// What was done that NCCL forbids; forgotten when asked.
std::vector<std::string> TakeMisuse();
// The kinds of the operations that member 0 of each communicator has run; forgotten when asked.
std::vector<std::string> TakeCalls();

CUstream_st* NewStream();
void FreeStream(CUstream_st* stream);
void SetDevice(int device);  // of the calling thread

// Device memory that begins on a page. Freeing what is registered is misuse.
std::byte* NewMemory(int64_t bytes);
void FreeMemory(std::byte* memory);

}  // namespace terrace::fake_nccl
