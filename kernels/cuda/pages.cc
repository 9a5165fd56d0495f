// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/pages.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/check.h"

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
};

namespace {

[[maybe_unused]] constexpr unsigned kSince =
    12000;  // the version of the calls: what the oldest toolkit has

// Where the driver keeps the call; null where it has none.
void* DriverCall(const char* name) {
  void* call = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &call, kSince, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &call, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? call : nullptr;
}

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

const PageCalls& TheCalls() {
  static const PageCalls calls = FindAll();
  return calls;
}

Status CheckCall(const PageCalls& calls, CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  if (calls.error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  return {std::string("cuda: ") + what + ": " + text};
}

// Memory of the device, of its own processes only.
CUmemAllocationProp Memory(int device) {
  CUmemAllocationProp memory = {};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.location.id = device;
  return memory;
}

Status CheckPages(const PageCalls& calls, int device) {
  if (!calls.status.ok()) return calls.status;
  int supported = 0;
  Status status = CheckCall(
      calls,
      calls.attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
      "cuDeviceGetAttribute");
  if (status.ok() && supported == 0) return {"cuda: this device cannot map pages"};
  size_t least = 0;
  const CUmemAllocationProp memory = Memory(device);
  if (status.ok()) {
    status = CheckCall(calls, calls.granularity(&least, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                       "cuMemGetAllocationGranularity");
  }
  if (status.ok() && (least == 0 || static_cast<size_t>(kPageBytes) % least != 0)) {
    return {"cuda: this device maps pages of " + std::to_string(least) + " bytes, not of " +
            std::to_string(kPageBytes)};
  }
  return status;
}

CUdeviceptr AddressOf(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

Status PagedRange::Reserve(int64_t bytes, std::unique_ptr<PagedRange>* range) {
  int device = 0;
  Status status = Check(cudaGetDevice(&device), "cudaGetDevice");
  if (!status.ok()) return status;
  const PageCalls& calls = TheCalls();
  status = CheckPages(calls, device);
  if (!status.ok()) return status;
  std::unique_ptr<PagedRange> made(new PagedRange(calls, device));
  CUdeviceptr address = 0;
  status = CheckCall(calls, calls.reserve(&address, static_cast<size_t>(bytes), kPageBytes, 0, 0),
                     "cuMemAddressReserve");
  if (!status.ok()) return status;
  made->data_ = reinterpret_cast<std::byte*>(address);
  made->bytes_ = bytes;
  *range = std::move(made);
  return {};
}

PagedRange::~PagedRange() {
  if (data_ == nullptr) return;
  if (!mapped_.empty()) cudaDeviceSynchronize();
  while (!mapped_.empty()) UnmapPage(*mapped_.begin());
  calls_.free(AddressOf(data_), static_cast<size_t>(bytes_));
}

Status PagedRange::Map(int64_t offset, int64_t bytes) {
  Status status;
  for (int64_t page = offset; page < offset + bytes && status.ok(); page += kPageBytes)
    status = MapPage(page);
  if (status.ok()) {
    CUmemAccessDesc access = {};
    access.location = Memory(device_).location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    status = CheckCall(
        calls_,
        calls_.set_access(AddressOf(data_ + offset), static_cast<size_t>(bytes), &access, 1),
        "cuMemSetAccess");
  }
  if (!status.ok()) {
    for (int64_t page = offset; page < offset + bytes; page += kPageBytes) {
      if (mapped_.count(page) > 0) UnmapPage(page);
    }
  }
  return status;
}

Status PagedRange::MapPage(int64_t offset) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp memory = Memory(device_);
  Status status = CheckCall(calls_, calls_.create(&handle, kPageBytes, &memory, 0), "cuMemCreate");
  if (!status.ok()) return status;
  status = CheckCall(calls_, calls_.map(AddressOf(data_ + offset), kPageBytes, 0, handle, 0),
                     "cuMemMap");
  // The mapping keeps the memory from here on, and its end gives it back.
  calls_.release(handle);
  if (status.ok()) mapped_.insert(offset);
  return status;
}

void PagedRange::Unmap(int64_t offset, int64_t bytes) {
  cudaDeviceSynchronize();
  for (int64_t page = offset; page < offset + bytes; page += kPageBytes) UnmapPage(page);
}

void PagedRange::UnmapPage(int64_t offset) {
  calls_.unmap(AddressOf(data_ + offset), kPageBytes);
  mapped_.erase(offset);
}

}  // namespace terrace::kernels::cuda
