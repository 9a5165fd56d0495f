// What identifies the machine that this process runs on, so that rates measured on one are never
// taken for another's: processor, cores, instruction set, memory and the version of the program,
// whose kernels were measured.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

struct Machine {
  std::string processor;  // "AMD EPYC", as /proc/cpuinfo names it
  std::string flags;      // its instruction set, as listed there
  uint32_t cores = 1;     // that this process may use
  int64_t memory_bytes = 0;
};
Machine ThisMachine();

// Of the last-level caches that the cores of this process have, each once, as the system tells; 0
// where it does not. Others may use them too.
int64_t LastLevelCacheBytes();
// Of these cores, by the folder that describes all ("/sys/devices/system/cpu").
int64_t LastLevelCacheBytes(const std::string& folder, const std::vector<int>& cores);

// The version of what is measured, for those who measure and those who are shown a profile: that of
// the program, and of how it measures.
std::string ProfileVersion(std::string_view program_version);

// 16 hexadecimal digits. Memory counts in GiB: systems take a little of it for themselves.
std::string MachineHash(const Machine& machine, std::string_view version);

}  // namespace terrace
