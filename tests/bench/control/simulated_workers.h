// Worker daemons without machines: each holds a real stream to a coordinator, carries its commands
// out on a table of fake ranks, and reports them with every heartbeat, as terrace-worker does.
// Ranks are prepared at once and then do a step every `step_seconds` for ever.
//
// One process holds thousands: gRPC's callbacks do the reading, one thread keeps the time. A lost
// stream is dialled again. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "proto/v1/worker.grpc.pb.h"

namespace terrace {

class SimulatedWorker;

class SimulatedWorkers {
 public:
  struct Options {
    std::string coordinator;  // host:port
    int workers = 1;
    absl::Duration heartbeat;  // zero: what the coordinator asks for
    absl::Duration step = absl::Seconds(2);
    int workers_per_connection = 1;  // at most the streams that a coordinator takes of one
  };

  explicit SimulatedWorkers(const Options& options);
  ~SimulatedWorkers();
  SimulatedWorkers(const SimulatedWorkers&) = delete;
  SimulatedWorkers& operator=(const SimulatedWorkers&) = delete;

  // How many the coordinator has registered on the streams that are open now.
  int Registered() const;
  // Messages so far, of all of them.
  int64_t Said() const { return said_; }
  // The worker says nothing any more, and its stream stays open: as a machine that lost its power.
  void Silence(const std::string& name);
  // Names are "sim-00000" and so on.
  static std::string NameOf(int index);

 private:
  void Run();

  const Options options_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> said_ = 0;
  std::thread clock_;
};

}  // namespace terrace
