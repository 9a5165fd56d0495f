// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/page_calls.h"

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/check.h"
#include "kernels/cuda/driver_call.h"
#include "kernels/cuda/pages.h"

namespace terrace::kernels::cuda {
namespace {

template <typename Call>
void Find(const char* name, Call* call, PageCalls* calls) {
  *call = reinterpret_cast<Call>(DriverCall(name));
  if (*call == nullptr && calls->status.ok())
    calls->status = {std::string("cuda: the driver has no ") + name};
}

PageCalls FindAll() {
  PageCalls calls;
  Find("cuDeviceGetAttribute", &calls.attribute, &calls);
  Find("cuMemGetAllocationGranularity", &calls.granularity, &calls);
  Find("cuMemAddressReserve", &calls.reserve, &calls);
  Find("cuMemAddressFree", &calls.free, &calls);
  Find("cuMemCreate", &calls.create, &calls);
  Find("cuMemRelease", &calls.release, &calls);
  Find("cuMemMap", &calls.map, &calls);
  Find("cuMemUnmap", &calls.unmap, &calls);
  Find("cuMemSetAccess", &calls.set_access, &calls);
  Find("cuGetErrorString", &calls.error_string, &calls);
  return calls;
}

}  // namespace

const PageCalls& ThePageCalls() {
  static const PageCalls calls = FindAll();
  return calls;
}

Status PageCalls::Check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  return {std::string("cuda: ") + what + ": " + text};
}

CUmemAllocationProp PageMemory(int device) {
  CUmemAllocationProp memory = {};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.location.id = device;
  return memory;
}

Status SharedMemory(const PageCalls& calls, int device, CUmemAllocationProp* memory) {
  const auto has = [&](CUdevice_attribute attribute) {
    int value = 0;
    return calls.attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
  };
  if (!has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
    return {"cuda: this device cannot share memory with other processes"};
  *memory = PageMemory(device);
  memory->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const bool rdma = has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  memory->allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  return {};
}

Status PageDevice(const PageCalls& calls, int* device) {
  Status status = kernels::cuda::Check(cudaGetDevice(device), "cudaGetDevice");
  if (!status.ok()) return status;
  if (!calls.status.ok()) return calls.status;
  int supported = 0;
  status = calls.Check(
      calls.attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, *device),
      "cuDeviceGetAttribute");
  if (status.ok() && supported == 0) return {"cuda: this device cannot map pages"};
  size_t least = 0;
  const CUmemAllocationProp memory = PageMemory(*device);
  if (status.ok()) {
    status = calls.Check(calls.granularity(&least, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                         "cuMemGetAllocationGranularity");
  }
  if (status.ok() && (least == 0 || static_cast<size_t>(kPageBytes) % least != 0)) {
    return {"cuda: this device maps pages of " + std::to_string(least) + " bytes, not of " +
            std::to_string(kPageBytes)};
  }
  return status;
}

CUdeviceptr AddressOf(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

Status PageCalls::Open(int device, std::byte* data, int64_t bytes) const {
  CUmemAccessDesc access = {};
  access.location = PageMemory(device).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return Check(set_access(AddressOf(data), static_cast<size_t>(bytes), &access, 1),
               "cuMemSetAccess");
}

}  // namespace terrace::kernels::cuda
