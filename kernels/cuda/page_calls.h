// The driver's calls for pages (cuMem*), looked up when they are first wanted: programs link only
// the runtime. For files of this folder alone: it names CUDA's types.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

struct PageCalls {
  Status status;  // what is missing
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;

  Status Check(CUresult result, const char* what) const;
  // Lets the device read and write what is mapped there.
  Status Open(int device, std::byte* data, int64_t bytes) const;
};

const PageCalls& ThePageCalls();

// The calling thread's device; a sentence where it or the driver cannot map pages of kPageBytes.
Status PageDevice(const PageCalls& calls, int* device);
// Memory of the device, of its own process only.
CUmemAllocationProp PageMemory(int device);
// Memory that other processes can be let at, and network cards where they can. A sentence where the
// device has none.
Status SharedMemory(const PageCalls& calls, int device, CUmemAllocationProp* memory);
CUdeviceptr AddressOf(const std::byte* data);

}  // namespace terrace::kernels::cuda
