// Stands for the driver's libnvidia-ml.so.1 in tests without a GPU: a shared library of that name,
// which whoever links it has loaded before it is asked for.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace terrace::fake_nvml {

struct Process {
  unsigned int pid = 0;
  unsigned long long bytes = 0;
};
struct State {
  std::vector<std::string> devices;  // "GPU-..."; all have the same processes
  std::vector<Process> processes;
  int init_error = 0;
  long long millijoules = 0;  // negative: not counted
  int busy_percent = 0;       // negative: not told, as of a part of a device
};
void Set(State state);
// nvmlInit calls that no nvmlShutdown has met.
int Open();

}  // namespace terrace::fake_nvml
