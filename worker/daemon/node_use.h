// What a node has left of its memory and what energy it takes, as the kernel tells: /proc/meminfo,
// RLIMIT_MEMLOCK (which ranks inherit), RAPL's counters in /sys/class/powercap, which only root may
// read on most systems.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace terrace {

struct NodeUse {
  int64_t host_available_bytes = 0;      // 0: unknown
  int64_t lock_limit_bytes = 0;          // that a process may lock; 0: no limit for it
  std::map<std::string, double> joules;  // by domain ("package-0", "package-0/dram")
};

class NodeUseReader {
 public:
  struct Roots {
    std::string meminfo = "/proc/meminfo";
    std::string powercap = "/sys/class/powercap";
  };
  NodeUseReader() : NodeUseReader(Roots()) {}
  explicit NodeUseReader(Roots roots) : roots_(std::move(roots)) {}

  // Joules are counted from the first call on. RAPL's counters wrap after minutes under load: who
  // asks less often than that misses a turn.
  NodeUse Read();

 private:
  struct Domain {
    int64_t last_uj = 0;
    double joules = 0;
  };

  void ReadEnergy(const std::string& folder, const std::string& name);

  const Roots roots_;
  std::map<std::string, Domain> domains_;
};

// Bytes that a file system has left for a user without privileges; 0: unknown.
int64_t AvailableBytes(const std::string& path);

}  // namespace terrace
