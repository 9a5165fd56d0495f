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
#include <memory>
#include <string>

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

struct NvmlCalls;  // of the library

class NvmlDevice {
 public:
  // `uuid`: 32 hexadecimal digits, of a GPU or of a part of one (MIG).
  static Status Open(const std::string& uuid, std::unique_ptr<NvmlDevice>* device);
  ~NvmlDevice();
  NvmlDevice(const NvmlDevice&) = delete;
  NvmlDevice& operator=(const NvmlDevice&) = delete;

  // All that process `pid` holds of the device: context, modules, allocations, mapped pages.
  // `at_least`: what it is known to hold; an answer below that is about something else. Where the
  // process is not listed and only one is, which holds that much, that one is taken for it. A
  // sentence where the driver does not tell.
  Status UsedBy(int64_t pid, int64_t at_least, int64_t* bytes) const;
  // Of any container.
  Status CountProcesses(int* count) const;

 private:
  NvmlDevice(const NvmlCalls& calls, void* handle) : calls_(calls), handle_(handle) {}

  const NvmlCalls& calls_;
  void* const handle_;
};

}  // namespace terrace::kernels::cuda
