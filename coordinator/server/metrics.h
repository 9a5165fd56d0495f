// The coordinator's /metrics. Series come from the stats that the control loop published last, so
// that a scrape waits for nobody and those of a job go some time after its end; RPC latencies are
// counted as they happen.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/metric.h"
#include "coordinator/jobs/control_stats.h"

namespace terrace {

// All that Text() may have, in its order.
std::vector<Metric> CoordinatorMetricTable();

class CoordinatorMetrics {
 public:
  // `published` is called on a scrape's thread and returns at once; null: nothing yet.
  using Published = std::function<std::shared_ptr<const ControlStats>()>;
  // How often calls and messages were refused, by reason; null: nothing is.
  using Refused = std::function<std::vector<std::pair<std::string, int64_t>>()>;
  CoordinatorMetrics(std::string version, Published published, Refused refused = nullptr);
  ~CoordinatorMetrics();

  // In the exposition format 0.0.4.
  std::string Text() const;

  // `code`: a name of grpc's status codes. What services call themselves, never a peer's word.
  void ObserveRpc(std::string_view method, std::string_view code, double seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
