// Collectives of one group of ranks. NCCL and Gloo stand behind this interface.
//
// All members call the same operations in the same order. Calls block until the local part is done;
// run them on a stream's own thread. A lost peer gives UNAVAILABLE with the group's name within
// `timeout`; the group is broken then, and the rank ends. Used only on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

enum class ReduceType { kF32, kBF16 };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;
  // Sum, in place. Deterministic: the same inputs give the same bits on every member and every run.
  virtual absl::Status AllReduce(void* data, int64_t elements, ReduceType type) = 0;
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root) = 0;
  virtual absl::Status Barrier() = 0;
};

// Where members find each other: a key-value store scoped to one (job, epoch). Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual absl::Status Set(const std::string& key, const std::vector<char>& value) = 0;
  // Blocks until all keys are there. DEADLINE_EXCEEDED names the first missing key.
  virtual absl::StatusOr<std::vector<std::vector<char>>> Wait(const std::vector<std::string>& keys,
                                                              int64_t timeout_ms) = 0;
};

struct GroupOptions {
  std::string name;  // unique within the job: "data_parallel.0"
  int rank = 0;      // within the group
  int size = 1;
  std::string
      interface_address;  // address to listen on; empty: the one that reaches the host's name
  int64_t timeout_ms = 60'000;
};
// Connects every pair and warms the group with one small operation. A group of one needs no
// network. Ignores SIGPIPE in the whole process from then on.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(const GroupOptions& options,
                                                          RendezvousStore* store);

}  // namespace terrace
