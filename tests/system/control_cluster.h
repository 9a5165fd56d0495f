// A coordinator and workers as processes, with fake ranks: for tests that kill them. Everything
// lives in one temporary folder and is killed and removed at the end.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/v1/job.grpc.pb.h"

namespace terrace {

// A child process; killed when it goes out of scope.
class ChildProcess {
 public:
  // Standard error goes to `log`.
  ChildProcess(const std::vector<std::string>& command, const std::string& log);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit status, or 128 + signal. Waits.
  int Wait();
  // Signal and Wait.
  int End(int signal);

 private:
  pid_t pid_ = -1;  // -1: has ended
  int status_ = 0;
};

class ControlCluster {
 public:
  ControlCluster();
  ~ControlCluster();

  // On the port of the first start.
  void StartCoordinator(const std::vector<std::string>& more = {});
  void StartWorker(const std::string& name, int devices, const std::vector<std::string>& more = {});
  ChildProcess& coordinator() { return *coordinator_; }
  ChildProcess& worker(const std::string& name) { return *workers_[name]; }

  // A tiny job; `words` is what its fake ranks do. The id.
  std::string Submit(const std::string& name, const std::string& words, int devices = 1);
  // Polls; fails the test with the job's text when it does not come to that in time.
  v1::Job WaitFor(const std::string& id, const std::function<bool(const v1::Job&)>& holds);
  v1::Job WaitForState(const std::string& id, v1::JobState state);
  v1::Job Get(const std::string& id);
  // Of the job's rank as its run directory says; 0 when there is none yet.
  pid_t RankPid(const std::string& worker, const std::string& id, int64_t epoch,
                uint32_t rank) const;
  std::vector<v1::JobEvent> WatchToEnd(const std::string& id, int64_t after = 0);

  v1::JobService::Stub& stub() { return *stub_; }
  const std::string& folder() const { return folder_; }
  int port() const { return port_; }
  std::string Spec(const std::string& name, const std::string& words, int devices) const;

 private:
  std::string folder_;
  int port_ = 0;
  std::unique_ptr<ChildProcess> coordinator_;
  std::map<std::string, std::unique_ptr<ChildProcess>> workers_;
  std::unique_ptr<v1::JobService::Stub> stub_;
};

// Calls `holds` every few milliseconds; false when it does not become true in 20 seconds.
bool WaitUntil(const std::function<bool()>& holds);
bool IsAlive(pid_t pid);

}  // namespace terrace
