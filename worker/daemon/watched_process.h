// One rank process and the thread that watches it: starts it or finds it again, receives its link
// messages, and notices its death at once.
//
// The process has its own session and outlives the daemon, unless `die_with_daemon`. It counts as
// ended only when it is dead and its link is drained, so that its last events are never lost to its
// last report.
//
// Handlers are called on the watching thread, in order; on_end is the last. The other methods are
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "proto/v1/worker.pb.h"
#include "worker/confine/privileges.h"
#include "worker/link/link.h"

namespace terrace {

struct RankLaunch {
  std::string binary;  // terrace-rank
  RankPrivileges privileges;
  std::vector<std::string> environment;  // names of variables that pass beside those of the list
  v1::RankConfig config;
  std::vector<std::string> arguments;  // beside those that name the configuration
  bool die_with_daemon = false;  // the kernel kills the rank when the daemon's loop thread ends
};

class WatchedProcess {
 public:
  struct Handlers {
    std::function<void(const v1::LinkMessage&)> on_message;
    std::function<void()> on_linked;  // connected; commands can be sent
    // How it ended, as far as waitpid could tell: "killed by signal 9", "exited with status 1";
    // empty for one that was adopted, whose status another process got.
    std::function<void(const std::string& how)> on_end;
  };

  // Forks and executes. Call from a thread that lives as long as the daemon.
  static absl::StatusOr<std::unique_ptr<WatchedProcess>> Start(const RankLaunch& launch,
                                                               Handlers handlers);
  // Watches a process that an earlier daemon started.
  static absl::StatusOr<std::unique_ptr<WatchedProcess>> Adopt(pid_t pid,
                                                               const std::string& run_directory,
                                                               Handlers handlers);
  // Stops watching; the process goes on.
  ~WatchedProcess();

  pid_t pid() const { return pid_; }
  // UNAVAILABLE when the rank does not listen now.
  absl::Status Send(const v1::LinkMessage& message);
  // SIGKILL to the process and what it started.
  void Kill();

 private:
  WatchedProcess(pid_t pid, UniqueFd pidfd, bool is_child, std::string run_directory,
                 Handlers handlers);

  void Watch();
  // Dials until it answers; null when the process has ended, or when watching is to stop.
  std::shared_ptr<LinkConnection> Dial();
  void ReceiveAll(LinkConnection& link);
  // Waits up to `timeout_ms` (-1: for ever) for the process to end.
  bool HasEnded(int timeout_ms);
  std::string Reap();

  const pid_t pid_;
  const UniqueFd pidfd_;
  const bool is_child_;
  const std::string run_directory_;
  const Handlers handlers_;
  std::atomic<bool> stopping_ = false;
  UniqueFd stop_pipe_read_, stop_pipe_write_;  // wakes the watching thread
  absl::Mutex mutex_;
  std::shared_ptr<LinkConnection> link_ ABSL_GUARDED_BY(mutex_);  // also used while it is read
  std::thread thread_;
};

}  // namespace terrace
