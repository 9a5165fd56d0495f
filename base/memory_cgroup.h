// The control group that limits a process's memory, of either version: its limit, its use and how
// often the kernel's OOM killer has struck in it.
//
// Files that are read a few times a second stay open, so that watching costs the reading alone.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace terrace {

class MemoryCgroup {
 public:
  struct Roots {
    std::string proc = "/proc";
    std::string cgroup = "/sys/fs/cgroup";
  };
  // Empty when the process or the file system of the groups is not there.
  static std::optional<MemoryCgroup> Find(int64_t pid, const Roots& roots);

  // As /proc/<pid>/cgroup calls it: "/system.slice/terrace.service".
  const std::string& name() const { return name_; }
  // The smallest of the group's and its parents'; empty: none.
  std::optional<int64_t> LimitBytes() const;
  std::optional<int64_t> UsedBytes() const;
  // Processes of the group that the OOM killer has killed, ever.
  std::optional<int64_t> OomKills() const;

 private:
  MemoryCgroup(int version, std::string name, std::string root, std::string folder);

  int version_;
  std::string name_;
  std::string root_;    // of the hierarchy
  std::string folder_;  // of the group
  UniqueFd used_, events_;
};

}  // namespace terrace
