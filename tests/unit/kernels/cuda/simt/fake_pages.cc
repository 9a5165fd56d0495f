// The driver's calls for pages (cuMem*), answered by the fake device as strictly as their
// documentation.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tests/unit/kernels/cuda/simt/cuda.h"
#include "tests/unit/kernels/cuda/simt/fake_state.h"

using namespace terrace::simt;  // NOLINT: the names below are CUDA's own

namespace {

constexpr size_t kBoundary = 2 << 20;

char* At(CUdeviceptr address) { return reinterpret_cast<char*>(address); }

bool Whole(CUdeviceptr address, size_t bytes) {
  const auto page = static_cast<size_t>(TheFake().options.page_bytes);
  return bytes > 0 && bytes % page == 0 && address % page == 0;
}

// In one range of addresses, all of it.
bool InRange(char* data, size_t bytes) {
  auto range = TheFake().ranges.upper_bound(data);
  if (range == TheFake().ranges.begin()) return false;
  --range;
  return data + bytes <= range->first + range->second;
}

bool AnyMapped(char* data, size_t bytes) {
  return std::any_of(TheFake().mappings.begin(), TheFake().mappings.end(), [=](const auto& one) {
    return one.first < data + bytes && data < one.first + one.second.bytes;
  });
}

// Without a name. What no longer lies in it takes no memory.
int PagesFile() {
  static const int file = memfd_create("fake-device-pages", MFD_CLOEXEC);
  if (file < 0) std::abort();
  return file;
}

off_t NewPages(size_t bytes) {
  static off_t end = 0;
  const off_t offset = end;
  end += static_cast<off_t>(bytes);
  void* data = nullptr;
  if (ftruncate(PagesFile(), end) == 0)
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, PagesFile(), offset);
  if (data == nullptr || data == MAP_FAILED) std::abort();
  std::memset(data, kPoison, bytes);
  munmap(data, bytes);
  return offset;
}

void Drop(int64_t handle) {
  Fake& fake = TheFake();
  const auto memory = fake.physical.find(handle);
  if (--memory->second.uses > 0) return;
  fake.used_bytes -= static_cast<int64_t>(memory->second.bytes);
  fallocate(PagesFile(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory->second.offset,
            static_cast<off_t>(memory->second.bytes));
  fake.physical.erase(memory);
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** call, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  static const std::pair<const char*, void*> calls[] = {
      {"cuGetErrorString", reinterpret_cast<void*>(&cuGetErrorString)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&cuDeviceGetAttribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&cuMemGetAllocationGranularity)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&cuMemAddressReserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&cuMemAddressFree)},
      {"cuMemCreate", reinterpret_cast<void*>(&cuMemCreate)},
      {"cuMemRelease", reinterpret_cast<void*>(&cuMemRelease)},
      {"cuMemMap", reinterpret_cast<void*>(&cuMemMap)},
      {"cuMemUnmap", reinterpret_cast<void*>(&cuMemUnmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&cuMemSetAccess)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(&cuTensorMapEncodeTiled)}};
  *found = cudaDriverEntryPointSymbolNotFound;
  *call = nullptr;
  for (const auto& [name, address] : calls) {
    if (symbol != std::string(name)) continue;
    *call = address;
    *found = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "invalid argument";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const DeviceOptions& options = TheFake().options;
  const bool shares = attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  *value = (shares ? options.shares_memory : options.maps_pages) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags which) {
  const int64_t times = which == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED ? 2 : 1;
  *bytes = static_cast<size_t>(times * TheFake().options.page_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  const std::lock_guard lock(TheFake().mutex);
  if (!Whole(0, bytes)) return CUDA_ERROR_INVALID_VALUE;
  void* const span = mmap(nullptr, bytes + kBoundary, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (span == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  char* const first = static_cast<char*>(span);
  const size_t slack = (kBoundary - reinterpret_cast<uintptr_t>(first) % kBoundary) % kBoundary;
  if (slack > 0) munmap(first, slack);
  munmap(first + slack + bytes, kBoundary - slack);
  TheFake().ranges.emplace(first + slack, bytes);
  *address = reinterpret_cast<CUdeviceptr>(first + slack);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  const std::lock_guard lock(TheFake().mutex);
  const auto range = TheFake().ranges.find(At(address));
  if (range == TheFake().ranges.end() || range->second != bytes || AnyMapped(At(address), bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(At(address), bytes);
  TheFake().ranges.erase(range);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* memory, unsigned long long) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (!Whole(0, bytes) || memory->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      memory->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int64_t room = fake.options.memory_bytes - fake.options.context_bytes - fake.used_bytes;
  if (static_cast<int64_t>(bytes) > room) return CUDA_ERROR_OUT_OF_MEMORY;
  fake.used_bytes += static_cast<int64_t>(bytes);
  if (memory->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    ++fake.counts.shared_allocations;
  fake.physical[++fake.next_handle] = {.bytes = bytes, .uses = 1, .offset = NewPages(bytes)};
  *handle = static_cast<CUmemGenericAllocationHandle>(fake.next_handle);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(TheFake().mutex);
  if (!TheFake().physical.contains(static_cast<int64_t>(handle))) return CUDA_ERROR_INVALID_VALUE;
  Drop(static_cast<int64_t>(handle));
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const auto memory = fake.physical.find(static_cast<int64_t>(handle));
  if (memory == fake.physical.end() || memory->second.bytes != bytes || offset != 0 ||
      !Whole(address, bytes) || !InRange(At(address), bytes) || AnyMapped(At(address), bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mmap(At(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, PagesFile(),
           memory->second.offset) == MAP_FAILED) {
    std::abort();
  }
  ++memory->second.uses;
  fake.mappings[At(address)] = {.bytes = bytes, .handle = memory->first};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (++fake.unmaps == fake.options.failing_unmap) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = fake.mappings.find(At(address));
  if (mapping == fake.mappings.end() || mapping->second.bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(At(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0) == MAP_FAILED) {
    std::abort();
  }
  const int64_t handle = mapping->second.handle;
  fake.mappings.erase(mapping);
  Drop(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
      access->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // All of it is mapped, without a gap.
  for (char* at = At(address); at < At(address) + bytes;) {
    const auto mapping = fake.mappings.find(at);
    if (mapping == fake.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    at += mapping->second.bytes;
  }
  for (char* at = At(address); at < At(address) + bytes;) {
    Mapping& mapping = fake.mappings[at];
    mapping.accessible = true;
    at += mapping.bytes;
  }
  return CUDA_SUCCESS;
}
