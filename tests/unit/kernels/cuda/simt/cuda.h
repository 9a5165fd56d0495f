// Stands for NVIDIA's <cuda.h>: what kernels/cuda asks of the driver itself, answered by
// fake_pages.cc and fake_tensor_map.cc.
//
// Only in the include path of this folder's tests and of those that use it. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using cuuint32_t = unsigned;
using cuuint64_t = unsigned long long;

enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
};
enum CUdevice_attribute {
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
};
enum CUmemAllocationHandleType {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
};
enum CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_INVALID = 0, CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemLocationType { CU_MEM_LOCATION_TYPE_INVALID = 0, CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum CUmemAllocationGranularity_flags {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};
enum CUmemAccess_flags {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAllocationProp_st {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  struct {
    unsigned char gpuDirectRDMACapable;
  } allocFlags;
};
using CUmemAllocationProp = CUmemAllocationProp_st;
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_32B = 1,
  CU_TENSOR_MAP_SWIZZLE_64B = 2,
  CU_TENSOR_MAP_SWIZZLE_128B = 3,
};
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, unsigned rank,
                                void* data, const unsigned long long* sizes,
                                const unsigned long long* strides, const unsigned* box,
                                const unsigned* steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill);
CUresult cuGetErrorString(CUresult error, const char** text);
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device);
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* memory,
                                       CUmemAllocationGranularity_flags which);
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* memory, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count);
