// The worker's /metrics: what its live ranks counted, taken at each scrape, so that the series of a
// job that has ended are gone. Names are those of docs/operating.md.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/daemon/supervisor.h"

namespace terrace {

struct WorkerSnapshot {
  std::vector<Supervisor::Metrics> ranks;
  uint32_t devices = 0;
  int64_t device_memory_bytes = 0;  // of each
  int64_t memory_bytes = 0;         // of the node
  bool connected = false;           // to the coordinator
};

class WorkerMetrics {
 public:
  // Called on a scrape's thread; false when the daemon is stopping.
  using Snapshot = std::function<bool(WorkerSnapshot*)>;
  explicit WorkerMetrics(Snapshot snapshot);
  ~WorkerMetrics();

  // Serves http://<address>/metrics; port 0 takes a free one. The result is the port. UNAVAILABLE
  // when it is in use.
  absl::StatusOr<int> Listen(const std::string& address);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
