// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/memory.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace terrace::kernels::cuda {

Status AllocateDevice(int64_t bytes, std::byte** data, bool* exhausted) {
  const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(data), static_cast<size_t>(bytes));
  // An allocation that fails leaves its error to be found by the next call that asks for one.
  if (error != cudaSuccess) cudaGetLastError();
  *exhausted = error == cudaErrorMemoryAllocation;
  return Check(error, "cudaMalloc");
}

void FreeDevice(std::byte* data) { cudaFree(data); }

Status AllocatePinned(int64_t bytes, std::byte** data) {
  const cudaError_t error = cudaHostAlloc(reinterpret_cast<void**>(data),
                                          static_cast<size_t>(bytes), cudaHostAllocDefault);
  if (error != cudaSuccess) cudaGetLastError();
  return Check(error, "cudaHostAlloc");
}

void FreePinned(std::byte* data) { cudaFreeHost(data); }

Status Pin(std::byte* data, int64_t bytes) {
  const cudaError_t error =
      cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterDefault);
  if (error != cudaSuccess) cudaGetLastError();
  return Check(error, "cudaHostRegister");
}

void Unpin(std::byte* data) { cudaHostUnregister(data); }

// cudaMemcpy returns when pageable memory has been read, not when the device has it, and cudaMemset
// before it is done: queues do not wait for the default stream, so these calls do.
Status CopyNow(void* to, const void* from, int64_t bytes) {
  Status status =
      Check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault), "cudaMemcpy");
  return status.ok() ? Check(cudaStreamSynchronize(nullptr), "cudaMemcpy") : status;
}

Status ZeroNow(std::byte* data, int64_t bytes) {
  Status status = Check(cudaMemset(data, 0, static_cast<size_t>(bytes)), "cudaMemset");
  return status.ok() ? Check(cudaStreamSynchronize(nullptr), "cudaMemset") : status;
}

Status FreeBytes(int64_t* free_bytes, int64_t* total_bytes) {
  size_t free_now = 0, total = 0;
  Status status = Check(cudaMemGetInfo(&free_now, &total), "cudaMemGetInfo");
  *free_bytes = static_cast<int64_t>(free_now);
  *total_bytes = static_cast<int64_t>(total);
  return status;
}

}  // namespace terrace::kernels::cuda
