// What the kernel says of a process that does nothing: whether it is stopped, waits for a drive or
// for a driver, reads its pages back, computes, or only sleeps. All of it is read from /proc, so
// the process need not take part.
//
// Thread-safe: no state but the folder's name.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/v1/job.pb.h"

namespace terrace {

// Beyond these a process reads its pages back, rather than touching a new one now and then.
inline constexpr double kPagingFaultsPerSecond = 50;
inline constexpr size_t kThreadsLookedAt = 256;

struct ProcessLook {
  v1::ProcessState state = v1::PROCESS_STATE_UNSPECIFIED;
  std::string words;  // "is stopped by a signal"; empty: unknown
};

class ProcessReader {
 public:
  // `proc`: where the system shows its processes.
  explicit ProcessReader(int64_t pid, std::string proc = "/proc");

  // Since it started; 0 where nobody is told.
  struct Counters {
    int64_t major_faults = 0;
    int64_t io_bytes = 0;  // read and written, of files and connections
  };
  Counters Read() const;
  ProcessLook Look(double faults_per_second) const;
  // A line a thread: its number, name, state, where it waits in the kernel, its system call; under
  // it its kernel stack, where this user may see it.
  std::string ThreadsText() const;

 private:
  struct Thread {
    std::string folder;
    std::string id;
    std::string name{};
    char state = '?';
    std::string wchan{};
  };
  std::vector<Thread> Threads() const;
  bool IsInDriverCall(const Thread& thread, std::string* device) const;

  const int64_t pid_;
  const std::string folder_;
};

}  // namespace terrace
