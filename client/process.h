// Child processes of the client: start, watch, end. Programs are found next to the client's own
// binary.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

// <folder of this binary>/<name>. NOT_FOUND when it is not there.
absl::StatusOr<std::string> SiblingProgram(std::string_view name);

// Replaces this process. Returns only on failure.
absl::Status Exec(const std::string& program, const std::vector<std::string>& arguments);

// Runs to the end, standard output and error inherited. The exit status, or 128 + signal. SIGINT,
// SIGTERM and SIGHUP that come meanwhile end the child, not this process, which can then clean up.
// One call at a time.
absl::StatusOr<int> RunToEnd(const std::string& program, const std::vector<std::string>& arguments);

// A background child in a process group of its own (a terminal's Ctrl-C does not reach it), its
// output in a log file. The destructor ends it: SIGTERM, then SIGKILL after `kStopGrace`.
// Thread-compatible.
class BackgroundProcess {
 public:
  static absl::StatusOr<BackgroundProcess> Start(const std::string& program,
                                                 const std::vector<std::string>& arguments,
                                                 const std::string& log_path);
  BackgroundProcess(BackgroundProcess&& other) noexcept;
  BackgroundProcess& operator=(BackgroundProcess&& other) noexcept;
  ~BackgroundProcess();

  bool Running();  // false once it has ended; then exit_status() is valid
  int exit_status() const { return exit_status_; }
  void RequestStop();  // SIGTERM, without waiting
  void Stop();         // idempotent
  const std::string& log_path() const { return log_path_; }

 private:
  BackgroundProcess(pid_t pid, std::string log_path) : pid_(pid), log_path_(std::move(log_path)) {}
  pid_t pid_ = -1;  // -1: none or ended
  int exit_status_ = 0;
  std::string log_path_;
};

}  // namespace terrace
