// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/pages.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/page_calls.h"

namespace terrace::kernels::cuda {
namespace {

Status First(Status first, Status second) { return first.ok() ? second : first; }

}  // namespace

Status PagedRange::Reserve(int64_t bytes, std::unique_ptr<PagedRange>* range) {
  int device = 0;
  const PageCalls& calls = ThePageCalls();
  Status status = PageDevice(calls, &device);
  if (!status.ok()) return status;
  std::unique_ptr<PagedRange> made(new PagedRange(calls, device));
  CUdeviceptr address = 0;
  status = calls.Check(calls.reserve(&address, static_cast<size_t>(bytes), kPageBytes, 0, 0),
                       "cuMemAddressReserve");
  if (!status.ok()) return status;
  made->data_ = reinterpret_cast<std::byte*>(address);
  made->bytes_ = bytes;
  *range = std::move(made);
  return {};
}

// Addresses where something stays mapped stay reserved: nobody else gets them.
PagedRange::~PagedRange() {
  if (data_ == nullptr) return;
  if (!mapped_.empty()) cudaDeviceSynchronize();
  Status status;
  for (const int64_t page : std::set<int64_t>(mapped_)) status = First(status, UnmapPage(page));
  if (status.ok()) calls_.free(AddressOf(data_), static_cast<size_t>(bytes_));
}

Status PagedRange::Map(int64_t offset, int64_t bytes, bool* exhausted) {
  *exhausted = false;
  Status status;
  std::vector<int64_t> fresh;
  for (int64_t page = offset; page < offset + bytes && status.ok(); page += kPageBytes) {
    if (mapped_.contains(page)) continue;
    status = MapPage(page, exhausted);
    if (status.ok()) fresh.push_back(page);
  }
  if (status.ok()) status = calls_.Open(device_, data_ + offset, bytes);
  if (status.ok()) return status;
  // A page that the driver does not give up stays in `mapped_`; the cause is what is said.
  for (const int64_t page : fresh) UnmapPage(page);
  return status;
}

Status PagedRange::MapPage(int64_t offset, bool* exhausted) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp memory = PageMemory(device_);
  const CUresult created = calls_.create(&handle, kPageBytes, &memory, 0);
  *exhausted = created == CUDA_ERROR_OUT_OF_MEMORY;
  if (created != CUDA_SUCCESS) return calls_.Check(created, "cuMemCreate");
  const Status status =
      calls_.Check(calls_.map(AddressOf(data_ + offset), kPageBytes, 0, handle, 0), "cuMemMap");
  // The mapping keeps the memory from here on, and its end gives it back.
  calls_.release(handle);
  if (status.ok()) mapped_.insert(offset);
  return status;
}

Status PagedRange::Unmap(int64_t offset, int64_t bytes) {
  Status status = kernels::cuda::Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (int64_t page = offset; page < offset + bytes; page += kPageBytes)
    status = First(status, UnmapPage(page));
  return status;
}

Status PagedRange::UnmapPage(int64_t offset) {
  Status status = calls_.Check(calls_.unmap(AddressOf(data_ + offset), kPageBytes), "cuMemUnmap");
  if (status.ok()) mapped_.erase(offset);
  return status;
}

}  // namespace terrace::kernels::cuda
