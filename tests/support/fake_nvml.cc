// NVML's calls, answered as tests want.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nvml.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace terrace::fake_nvml {
namespace {

constexpr int kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7;

std::mutex mutex;
State the_state;
int open_count = 0;

struct ProcessInfo {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
};

}  // namespace

void Set(State state) {
  const std::lock_guard lock(mutex);
  the_state = std::move(state);
}

int Open() {
  const std::lock_guard lock(mutex);
  return open_count;
}

extern "C" {

int nvmlInit_v2() {
  const std::lock_guard lock(mutex);
  if (the_state.init_error == 0) ++open_count;
  return the_state.init_error;
}

int nvmlShutdown() {
  const std::lock_guard lock(mutex);
  --open_count;
  return 0;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const std::lock_guard lock(mutex);
  const auto& all = the_state.devices;
  const auto found = std::find(all.begin(), all.end(), uuid);
  if (found == all.end()) return kNotFound;
  *device = &the_state;
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned int* count, ProcessInfo* processes) {
  const std::lock_guard lock(mutex);
  const auto needed = static_cast<unsigned int>(the_state.processes.size());
  const bool fits = needed <= std::exchange(*count, needed);
  if (!fits) return kInsufficientSize;
  for (const Process& process : the_state.processes)
    *processes++ = {process.pid, process.bytes, ~0u, ~0u};
  return 0;
}

int nvmlDeviceGetUtilizationRates(void*, unsigned int* percents) {
  const std::lock_guard lock(mutex);
  if (the_state.busy_percent < 0) return kNotSupported;
  percents[0] = static_cast<unsigned int>(the_state.busy_percent);
  percents[1] = 77;  // of its memory's time: something else
  return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
  const std::lock_guard lock(mutex);
  if (the_state.millijoules < 0) return kNotSupported;
  *millijoules = static_cast<unsigned long long>(the_state.millijoules);
  return 0;
}

const char* nvmlErrorString(int error) {
  return error == kNotFound ? "Not Found" : "an error of the fake NVML";
}

}  // extern "C"

}  // namespace terrace::fake_nvml
