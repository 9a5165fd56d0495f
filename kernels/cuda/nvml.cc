// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <vector>

namespace terrace::kernels::cuda {
namespace {

// The library's own words (nvml.h is not part of every toolkit).
constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr int kSuccess = 0, kInsufficientSize = 7;
constexpr uint64_t kNotAvailable = ~uint64_t{0};
struct ProcessInfo {  // nvmlProcessInfo_t, as of nvmlDeviceGetComputeRunningProcesses_v3
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);
struct Utilization {  // nvmlUtilization_t
  unsigned int gpu_percent, memory_percent;
};

constexpr unsigned int kProcessesAtFirst = 64;
constexpr int kTries = 4;  // processes may come while they are counted

// "GPU-01020304-0506-0708-090a-0b0c0d0e0f10".
std::string NvmlName(const char* kind, const std::string& digits) {
  std::string name = kind;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) name += '-';
    name += digits[i];
  }
  return name;
}

}  // namespace

struct NvmlCalls {
  Status status;  // what is missing
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_uuid)(const char*, void**) = nullptr;
  int (*processes)(void*, unsigned int*, ProcessInfo*) = nullptr;
  int (*utilization)(void*, Utilization*) = nullptr;
  int (*energy)(void*, unsigned long long*) = nullptr;  // millijoules; null: an old driver
  const char* (*error_string)(int) = nullptr;

  Status Check(int result, const char* what) const {
    if (result == kSuccess) return {};
    return {std::string("NVML: ") + what + ": " + error_string(result)};
  }
};

namespace {

template <typename Call>
void Find(void* library, const char* name, Call* call, NvmlCalls* calls) {
  *call = reinterpret_cast<Call>(dlsym(library, name));
  if (*call == nullptr && calls->status.ok())
    calls->status = {std::string("NVML: ") + kLibrary + " has no " + name + ": update the driver"};
}

NvmlCalls FindAll() {
  NvmlCalls calls;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // stays
  if (library == nullptr) {
    calls.status = {std::string("NVML: ") + kLibrary +
                    " cannot be loaded: it comes with the driver; in a container with "
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"};
    return calls;
  }
  Find(library, "nvmlInit_v2", &calls.init, &calls);
  Find(library, "nvmlShutdown", &calls.shutdown, &calls);
  Find(library, "nvmlDeviceGetHandleByUUID", &calls.device_by_uuid, &calls);
  Find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &calls.processes, &calls);
  Find(library, "nvmlDeviceGetUtilizationRates", &calls.utilization, &calls);
  Find(library, "nvmlErrorString", &calls.error_string, &calls);
  calls.energy = reinterpret_cast<decltype(calls.energy)>(
      dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
  return calls;
}

const NvmlCalls& TheCalls() {
  static const NvmlCalls calls = FindAll();
  return calls;
}

Status Listed(const NvmlCalls& calls, void* device, std::vector<ProcessInfo>* processes) {
  unsigned int count = kProcessesAtFirst;
  int result = kInsufficientSize;
  for (int i = 0; i < kTries && result == kInsufficientSize; ++i) {
    processes->resize(count);
    result = calls.processes(device, &count, processes->data());
  }
  processes->resize(result == kSuccess ? count : 0);
  return calls.Check(result, "nvmlDeviceGetComputeRunningProcesses");
}

bool CanBe(const KnownProcess& known, int64_t at_most, int64_t pid, int64_t held) {
  if (held <= 0 || held < known.at_least || held > at_most) return false;
  // Were it another process, this one would hold its own beside it.
  return known.shares_numbers ? pid == known.pid : held > at_most - known.at_least;
}

}  // namespace

Status NvmlDevice::Open(const std::string& uuid, std::unique_ptr<NvmlDevice>* device) {
  const NvmlCalls& calls = TheCalls();
  if (!calls.status.ok()) return calls.status;
  Status status = calls.Check(calls.init(), "nvmlInit");
  if (!status.ok()) return status;
  void* handle = nullptr;
  status = calls.Check(calls.device_by_uuid(NvmlName("GPU-", uuid).c_str(), &handle), "the device");
  if (!status.ok() && calls.device_by_uuid(NvmlName("MIG-", uuid).c_str(), &handle) == kSuccess)
    status = {};
  if (status.ok()) {
    device->reset(new NvmlDevice(calls, handle));
  } else {
    calls.shutdown();
  }
  return status;
}

NvmlDevice::~NvmlDevice() { calls_.shutdown(); }

Status NvmlDevice::CountProcesses(int* count) const {
  std::vector<ProcessInfo> processes;
  const Status status = Listed(calls_, handle_, &processes);
  *count = static_cast<int>(processes.size());
  return status;
}

double NvmlDevice::EnergyJoules() const {
  unsigned long long millijoules = 0;
  if (calls_.energy == nullptr || calls_.energy(handle_, &millijoules) != kSuccess) return 0;
  return static_cast<double>(millijoules) / 1000;
}

Status NvmlDevice::BusyPercent(int* percent) const {
  Utilization utilization = {};
  const Status status =
      calls_.Check(calls_.utilization(handle_, &utilization), "nvmlDeviceGetUtilizationRates");
  *percent = static_cast<int>(utilization.gpu_percent);
  return status;
}

Status NvmlDevice::UsedBy(const KnownProcess& known, int64_t* bytes) const {
  // Around the list: memory may come and go meanwhile.
  const int64_t before = known.all_hold();
  std::vector<ProcessInfo> processes;
  const Status status = Listed(calls_, handle_, &processes);
  if (!status.ok()) return status;
  const int64_t at_most = std::max(before, known.all_hold());
  std::map<int64_t, int64_t> used;  // by number: a process may be there once for each instance
  for (const ProcessInfo& process : processes) {
    int64_t& of_process = used[process.pid];
    if (process.used_bytes != kNotAvailable) of_process += static_cast<int64_t>(process.used_bytes);
  }
  for (const auto& [pid, held] : used) {
    if (!CanBe(known, at_most, pid, held)) continue;
    *bytes = held;
    return {};
  }
  if (const auto own = used.find(known.pid); known.shares_numbers && own != used.end()) {
    return {"NVML: the driver lists this process with " + std::to_string(own->second) +
            " bytes, but it holds at least " + std::to_string(known.at_least) +
            " and all together at most " + std::to_string(at_most)};
  }
  return {"NVML: the driver lists " + std::to_string(used.size()) +
          " processes on the device, none of which is this one for sure, as in a container; share "
          "the host's process numbers with it (--pid=host)"};
}

}  // namespace terrace::kernels::cuda
