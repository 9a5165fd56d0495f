// The text of the worker's /metrics: what its live ranks counted, taken at each scrape, so that the
// series of a job that has ended are gone. docs/metrics.md is printed from the table.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/metric.h"
#include "worker/daemon/node_use.h"
#include "worker/daemon/supervisor.h"

namespace terrace {

// What keeps the ranks here from the rest of the machine.
struct RankConfinement {
  std::string user;
  int landlock = 0;  // version of the kernel's; 0: none
  bool seccomp = false;
  bool roots = false;  // paths of jobs lie below some
};

struct WorkerSnapshot {
  std::vector<Supervisor::Metrics> ranks;
  std::string version;
  uint32_t devices = 0;
  int64_t device_memory_bytes = 0;  // of each
  int64_t memory_bytes = 0;         // of the node
  bool connected = false;           // to the coordinator
  NodeUse use;
  RankConfinement confinement;
  int64_t nvme_available_bytes = 0;  // of the fullest drive that a rank offloads to; 0: none does
};

// All that WorkerMetricsText() may have, in its order.
std::vector<Metric> WorkerMetricTable();

// In the exposition format 0.0.4.
std::string WorkerMetricsText(const WorkerSnapshot& snapshot);

}  // namespace terrace
