// What a process of this machine has used so far, as its kernel says.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace terrace {

struct ProcessUse {
  double cpu_seconds = 0;     // of its own threads, without its children
  int64_t written_bytes = 0;  // by calls of write, to files and elsewhere
  int64_t held_bytes = 0;     // resident
};

// Zeros of a process that has gone.
inline ProcessUse UseOf(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid, "/");
  ProcessUse use;
  std::string line;
  if (std::ifstream stat(folder + "stat"); std::getline(stat, line)) {
    std::istringstream fields(line.substr(line.rfind(')') + 2));  // a name may have spaces
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    int64_t user = 0, system = 0;
    fields >> user >> system;
    use.cpu_seconds =
        static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  const auto number = [&](const char* file, const std::string& key) {
    std::ifstream in(folder + file);
    for (std::string name; in >> name;) {
      int64_t value = 0;
      if (name == key && in >> value) return value;
    }
    return int64_t{0};
  };
  use.written_bytes = number("io", "wchar:");
  use.held_bytes = number("status", "VmRSS:") << 10;
  return use;
}

}  // namespace terrace
