// A coordinator and workers on this machine that live as long as one command: what `terrace run`
// trains on.
//
// They listen on loopback only, keep their state and logs in one folder, and end with the client,
// even when it is killed. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/process.h"

namespace terrace {

class LocalCluster {
 public:
  // Starts the coordinator and waits until it answers. An error of its exit code (INTERNAL of most)
  // with the end of its log when it ends, UNAVAILABLE when it does not answer in time,
  // RESOURCE_EXHAUSTED when the folder's disk is full.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const std::string& state_directory);
  // Stops workers (with their ranks), then the coordinator.
  ~LocalCluster();

  // Starts `nodes` workers with `devices` each, of the kind that resources.device asks for
  // (DeviceOfLocalWorkers), and waits until all have registered.
  absl::Status AddWorkers(int nodes, int devices, int64_t device_memory_bytes,
                          int threads_per_device, const std::string& device);
  // As Start(), with the log's place, when the coordinator or a worker has ended.
  absl::Status CheckAlive();
  // Why a call to it failed: as CheckAlive where a local process turns out to have ended, waiting
  // two seconds for that when the coordinator cannot be reached, `failure` otherwise.
  absl::Status CauseOf(absl::Status failure);

  Connection& connection() { return *connection_; }
  const std::string& address() const { return options_.coordinator; }
  const std::string& state_directory() const { return state_directory_; }

 private:
  explicit LocalCluster(std::string state_directory)
      : state_directory_(std::move(state_directory)) {}

  // The port on which it listens.
  absl::StatusOr<int> StartCoordinator();
  bool FoundItsStateInUse();

  std::string state_directory_;
  GlobalOptions options_;
  std::vector<BackgroundProcess> coordinator_;  // zero or one
  std::vector<BackgroundProcess> workers_;
  std::unique_ptr<Connection> connection_;
};

// The kind of devices that workers of one machine are started with: several nodes on it would each
// take the same GPUs, so they are CPUs unless the spec asks for GPUs, which is INVALID_ARGUMENT.
absl::StatusOr<std::string> DeviceOfLocalWorkers(int nodes, const std::string& device);

// $XDG_STATE_HOME/terrace/run-<time>-<pid>, made; older ones beyond the newest ten are removed.
absl::StatusOr<std::string> FreshStateDirectory();

}  // namespace terrace
