// What the driver says that one process holds of a GPU: NVML (libnvidia-ml), which comes with the
// driver and is loaded when it is first wanted. No CUDA context is needed or made.
//
// The driver counts a process by its number outside of all containers. In a container it lists
// numbers that mean nothing there, this process's own without its bytes, or nobody, depending on
// its version: each of them is an answer that does not count, with a sentence.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

struct NvmlCalls;  // of the library

// Whether the driver's numbers of processes are those that this process sees: it is in no container
// with numbers of its own.
bool SharesProcessNumbers();

// What is known of a process without the driver's list.
struct KnownProcess {
  int64_t pid = 0;
  bool shares_numbers = false;        // SharesProcessNumbers
  int64_t at_least = 0;               // bytes that it holds of the device
  std::function<int64_t()> all_hold;  // that all processes together hold when it is called
};

class NvmlDevice {
 public:
  // `uuid`: 32 hexadecimal digits, of a GPU or of a part of one (MIG).
  static Status Open(const std::string& uuid, std::unique_ptr<NvmlDevice>* device);
  ~NvmlDevice();
  NvmlDevice(const NvmlDevice&) = delete;
  NvmlDevice& operator=(const NvmlDevice&) = delete;

  // All that the process holds of the device: context, modules, allocations, mapped pages. An
  // answer that does not fit what is known is about something else. Where the process does not
  // share the driver's numbers the one that is listed with so much that this one could not hold its
  // own beside it is taken for it, whatever its number. A sentence where the driver does not tell.
  Status UsedBy(const KnownProcess& known, int64_t* bytes) const;
  // Of any container.
  Status CountProcesses(int* count) const;
  // The share of the driver's last sample, of a second at the most, in which any kernel ran. A
  // sentence for a part of a device.
  Status BusyPercent(int* percent) const;
  // That the GPU has taken since its driver was loaded; 0: the driver does not count, as of a part
  // of a device.
  double EnergyJoules() const;

 private:
  NvmlDevice(const NvmlCalls& calls, void* handle) : calls_(calls), handle_(handle) {}

  const NvmlCalls& calls_;
  void* const handle_;
};

}  // namespace terrace::kernels::cuda
