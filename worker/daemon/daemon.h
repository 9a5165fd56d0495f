// The worker daemon put together: agent, supervisor, log reader and /metrics around one loop.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/confine/confine.h"
#include "worker/confine/privileges.h"
#include "worker/daemon/agent.h"
#include "worker/daemon/probe.h"

namespace terrace {

struct DaemonOptions {
  Agent::Options agent;
  ProbeOptions probe;
  RankPrivileges privileges;                  // of ranks
  std::vector<std::string> rank_environment;  // names that pass to ranks beside those of the list
  ConfineOptions confine;                     // of ranks
  std::string data_address;                   // as DataAddress() takes it
  std::string metrics_listen;                 // empty: no /metrics
  bool metrics_insecure = false;              // allows it without TLS off loopback
  bool stop_ranks_on_exit = false;            // ranks end with the daemon, however it ends
  bool exit_with_parent = false;
};

// Blocks until SIGTERM or SIGINT, or until the parent process dies with exit_with_parent.
// UNAVAILABLE: the metrics address is in use, or another daemon holds the state directory. Call
// from the main thread before others exist.
absl::Status RunDaemon(DaemonOptions options);

}  // namespace terrace
