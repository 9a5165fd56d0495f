// The coordinator's /metrics. Series come from a snapshot taken at each scrape, so those of an
// ended job are simply not there any more; only RPC latencies are counted as they happen.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "coordinator/jobs/reconciler.h"

namespace terrace {

class CoordinatorMetrics {
 public:
  // `snapshot` is called on a scrape's thread; it returns false when the coordinator is stopping.
  using Snapshot = std::function<bool(ControlStats*)>;
  explicit CoordinatorMetrics(Snapshot snapshot);
  ~CoordinatorMetrics();

  // In the exposition format 0.0.4; of RPCs alone while the coordinator stops.
  std::string Text() const;

  void ObserveRpc(std::string_view method, double seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
