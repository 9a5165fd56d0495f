// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>

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
  Find(library, "nvmlErrorString", &calls.error_string, &calls);
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

Status NvmlDevice::UsedBy(int64_t pid, int64_t at_least, int64_t* bytes) const {
  std::vector<ProcessInfo> processes;
  Status status = Listed(calls_, handle_, &processes);
  if (!status.ok()) return status;
  bool listed = false;
  uint64_t used = 0;
  for (const ProcessInfo& process : processes) {  // a process may be there once for each instance
    if (process.pid != pid) continue;
    listed = true;
    if (process.used_bytes != kNotAvailable) used += process.used_bytes;
  }
  if (!listed && processes.size() == 1 && processes[0].used_bytes != kNotAvailable)
    used = processes[0].used_bytes;
  if (used > 0 && used >= static_cast<uint64_t>(at_least)) {
    *bytes = static_cast<int64_t>(used);
    return {};
  }
  if (listed) {
    return {"NVML: the driver lists this process with " + std::to_string(used) +
            " bytes and it holds at least " + std::to_string(at_least) +
            ", as drivers do for a process in a container; share the host's process numbers with "
            "it (--pid=host)"};
  }
  return {"NVML: the driver lists " + std::to_string(processes.size()) +
          " processes on the device by other numbers than this one's, as it does in a container; "
          "share the host's process numbers with it (--pid=host)"};
}

}  // namespace terrace::kernels::cuda
