// Connects the channels of a group over NCCL: one for collectives, two for each peer of messages.
//
// The member with the lower rank in a communicator makes its unique id and leaves it in the store.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/comm/nccl_channel.h"

namespace terrace {

// Members of the communicator of a direction of messages.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

struct FreeDeviceMemory {
  void operator()(float* memory) const { cudaFree(memory); }
};

// Thread-compatible.
struct NcclConnection {
  std::unique_ptr<NcclGroup> group;
  std::unique_ptr<NcclChannel> collectives;
  std::map<int, std::unique_ptr<NcclChannel>> sends, receives;  // by peer
  std::unique_ptr<float, FreeDeviceMemory> scratch;             // 2 * (size + 1) zeros
};

// Nothing has been sent yet: NCCL connects members when they first send.
absl::StatusOr<NcclConnection> ConnectNcclChannels(const GroupOptions& options,
                                                   RendezvousStore* store, CUstream_st* stream);

}  // namespace terrace
