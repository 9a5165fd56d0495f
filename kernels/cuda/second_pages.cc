// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/second_pages.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <set>

#include "kernels/cuda/page_calls.h"
#include "kernels/cuda/pages.h"

namespace terrace::kernels::cuda {

Status SecondPages::Reserve(int64_t bytes, const std::vector<Run>& runs,
                            std::unique_ptr<SecondPages>* pages, bool* exhausted) {
  *exhausted = false;
  int device = 0;
  const PageCalls& calls = ThePageCalls();
  Status status = PageDevice(calls, &device);
  if (!status.ok()) return status;

  std::unique_ptr<SecondPages> made(new SecondPages(calls));
  std::set<int64_t> cuts = {0, bytes};
  int64_t address_bytes = bytes;
  for (const Run& run : runs) {
    cuts.insert({run.offset, run.offset + run.bytes});
    address_bytes += run.bytes;
  }
  status = made->Open(address_bytes);
  if (!status.ok()) return status;
  status = made->Create(PageMemory(device), {cuts.begin(), cuts.end()}, exhausted);
  if (status.ok()) status = made->Map(0, bytes, 0);
  int64_t at = bytes;
  for (size_t i = 0; i < runs.size() && status.ok(); ++i) {
    status = made->Map(runs[i].offset, runs[i].bytes, at);
    at += runs[i].bytes;
  }
  if (status.ok()) status = calls.Open(device, made->data_, address_bytes);
  if (status.ok()) *pages = std::move(made);
  return status;
}

Status SecondPages::ReserveShared(int64_t bytes, std::unique_ptr<SecondPages>* pages,
                                  bool* exhausted) {
  *exhausted = false;
  int device = 0;
  const PageCalls& calls = ThePageCalls();
  Status status = PageDevice(calls, &device);
  if (!status.ok()) return status;
  CUmemAllocationProp memory = {};
  status = SharedMemory(calls, device, &memory);
  size_t granularity = 0;
  if (status.ok()) {
    status =
        calls.Check(calls.granularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                    "cuMemGetAllocationGranularity");
  }
  if (!status.ok()) return status;
  const int64_t unit = std::max<int64_t>(kPageBytes, static_cast<int64_t>(granularity));
  const int64_t whole = (std::max<int64_t>(bytes, 1) + unit - 1) / unit * unit;
  std::unique_ptr<SecondPages> made(new SecondPages(calls));
  status = made->Open(whole);
  if (status.ok()) status = made->Create(memory, {0, whole}, exhausted);
  if (status.ok()) status = made->Map(0, whole, 0);
  if (status.ok()) status = calls.Open(device, made->data_, whole);
  if (status.ok()) *pages = std::move(made);
  return status;
}

Status SecondPages::Open(int64_t address_bytes) {
  CUdeviceptr address = 0;
  const Status status =
      calls_.Check(calls_.reserve(&address, static_cast<size_t>(address_bytes), kPageBytes, 0, 0),
                   "cuMemAddressReserve");
  if (!status.ok()) return status;
  data_ = reinterpret_cast<std::byte*>(address);
  address_bytes_ = address_bytes;
  return {};
}

Status SecondPages::Create(const CUmemAllocationProp& memory, const std::vector<int64_t>& cuts,
                           bool* exhausted) {
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    CUmemGenericAllocationHandle handle = 0;
    const int64_t bytes = cuts[i + 1] - cuts[i];
    const CUresult created = calls_.create(&handle, static_cast<size_t>(bytes), &memory, 0);
    *exhausted = created == CUDA_ERROR_OUT_OF_MEMORY;
    if (created != CUDA_SUCCESS) return calls_.Check(created, "cuMemCreate");
    pieces_.push_back({.offset = cuts[i], .bytes = bytes, .handle = handle});
  }
  return {};
}

Status SecondPages::Map(int64_t offset, int64_t bytes, int64_t at) {
  auto piece = std::lower_bound(pieces_.begin(), pieces_.end(), offset,
                                [](const Piece& p, int64_t o) { return p.offset < o; });
  for (const int64_t end = at + bytes; at < end; ++piece) {
    const Status status = calls_.Check(
        calls_.map(AddressOf(data_ + at), static_cast<size_t>(piece->bytes), 0, piece->handle, 0),
        "cuMemMap");
    if (!status.ok()) return status;
    mapped_.push_back({.offset = at, .bytes = piece->bytes});
    at += piece->bytes;
  }
  return {};
}

// What the driver says now changes nothing any more.
SecondPages::~SecondPages() {
  if (data_ == nullptr) return;
  if (!mapped_.empty()) cudaDeviceSynchronize();
  for (const Run& run : mapped_)
    calls_.unmap(AddressOf(data_ + run.offset), static_cast<size_t>(run.bytes));
  for (const Piece& piece : pieces_) calls_.release(piece.handle);
  calls_.free(AddressOf(data_), static_cast<size_t>(address_bytes_));
}

}  // namespace terrace::kernels::cuda
