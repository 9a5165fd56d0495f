// Communicator over NCCL, for groups each of whose ranks has a GPU of its own (transport.h).
//
// Memory is the device's. A call is put on a CUDA stream behind what is there and returns when it
// has run: what it reads is ready when the call is made, or made by what is on that stream by then.
// Collectives run on the stream that the group was connected with, messages on streams of their
// own, one a peer and direction, so that a receive that waits holds up nobody.
//
// NCCL needs one order of the collectives of all groups of a device, the same on all members: give
// all of them one stream, and call them on its thread in the order of the program's list.
// docs/collectives.md says why that is enough, and what makes the sums deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

struct CUstream_st;

namespace terrace {

// Threads as in Communicator. The device is the one that was current when the group was connected,
// whatever the calling thread's is.
class NcclCommunicator : public Communicator {
 public:
  // Why NCCL copies operands through buffers of its own; empty where it reads and writes the memory
  // that the group was connected with in place.
  virtual const std::string& slower_because() const = 0;

  // Where calls run: whoever wants the device to wait for something before a call puts the wait
  // here.
  virtual CUstream_st* stream() const = 0;             // of collectives
  virtual CUstream_st* send_stream(int to) const = 0;  // null for no peer of messages
  virtual CUstream_st* receive_stream(int from) const = 0;
};

// Device memory of a rank that operands lie in: its arena. It outlives the group, and holds nothing
// yet when the group is connected.
struct NcclMemory {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  std::string refusal = {};  // why NCCL must not use it in place; empty: it may
};

// Connects the group without blocking inside NCCL, and runs a small operation of each kind, so that
// nothing is connected or allocated later. Registers `memory` with NCCL where all members can
// (nccl_registration.h); null: no member has any. UNAVAILABLE when a member does not
// come within the options' timeout_ms, which is also how long each call may take from when it was
// made. FAILED_PRECONDITION in a build without NCCL.
//
// A call that fails, or takes too long, breaks the group: it is UNAVAILABLE where a member is lost,
// with the group, the rank and the operation; Abort makes it CANCELLED. Borrows the stream and,
// while it connects, the store. A group of one needs neither NCCL nor a store.
absl::StatusOr<std::unique_ptr<NcclCommunicator>> ConnectNccl(const GroupOptions& options,
                                                              RendezvousStore* store,
                                                              CUstream_st* stream,
                                                              const NcclMemory* memory = nullptr);

}  // namespace terrace
