// A communicator of host memory made to serve device memory: for ranks that share a GPU, which NCCL
// does not allow.
//
// What is sent passes through staging memory in segments of a fixed size, reserved when the group
// is made. A segment holds the same range of every part of a payload, so that each element is
// summed in the place where the host communicator would sum it: the bits are the host
// communicator's own.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace terrace {

// Host memory that the network reads and writes, and a queue of copies between it and the device.
// Copies run in order. Used on one thread at a time.
class StagingBuffer {
 public:
  virtual ~StagingBuffer() = default;
  virtual std::byte* data() = 0;
  // `host` lies in this buffer. The bytes are there when Wait returns.
  virtual absl::Status ToHost(std::byte* host, const void* device, int64_t bytes) = 0;
  virtual absl::Status ToDevice(void* device, const std::byte* host, int64_t bytes) = 0;
  virtual absl::Status Wait() = 0;
};

// What a buffer is for: collectives, or the messages of one direction and peer. Each is used by a
// thread of its own.
struct StagingUse {
  enum Kind { kCollectives, kSend, kReceive } kind = kCollectives;
  int peer = -1;  // of messages
};
using MakeStagingBuffer =
    std::function<absl::StatusOr<std::unique_ptr<StagingBuffer>>(StagingUse use, int64_t bytes)>;

// All members of a group must have the same.
struct StagingSizes {
  int64_t collective_bytes = 16 << 20;  // one buffer, for what goes out and what comes in
  int64_t message_bytes = 4 << 20;      // one for each peer of messages and direction
};

// The memory that a group of so many ranks reserves on one of them.
int64_t StagingBytes(const StagingSizes& sizes, int message_peers);

// `options`: those that `host` was connected with; its message_peers are the only ones that
// messages may go to and come from. INVALID_ARGUMENT for sizes that hold no element of each member.
absl::StatusOr<std::unique_ptr<Communicator>> StageThroughHost(std::unique_ptr<Communicator> host,
                                                               const GroupOptions& options,
                                                               const MakeStagingBuffer& make_buffer,
                                                               const StagingSizes& sizes = {});

}  // namespace terrace
