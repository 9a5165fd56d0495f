// Addresses of a device of which pages get memory and give it back, without anything that lies
// there being moved: CUDA's virtual memory (cuMem*).
//
// Every page is an allocation of its own, so that any of them can go back. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

inline constexpr int64_t kPageBytes = 2 << 20;  // what devices map at once at the least

struct PageCalls;  // of the driver

class PagedRange {
 public:
  // On the calling thread's device. `bytes`: of addresses, whole pages; they begin on a page. A
  // sentence where the driver or the device cannot map pages.
  static Status Reserve(int64_t bytes, std::unique_ptr<PagedRange>* range);
  // Unmaps what is left.
  ~PagedRange();
  PagedRange(const PagedRange&) = delete;
  PagedRange& operator=(const PagedRange&) = delete;

  std::byte* data() const { return data_; }
  // REQUIRES (both): whole pages inside the range, all unmapped, all mapped; a page that the driver
  // did not give up counts as unmapped and is used as it is. After an error none of them is mapped,
  // but for such; `exhausted`: because the device has no more memory. Content: anything.
  Status Map(int64_t offset, int64_t bytes, bool* exhausted);
  // Waits for the device first: what was queued may still use them. A page that the driver does not
  // give up stays mapped, and the others go.
  Status Unmap(int64_t offset, int64_t bytes);

 private:
  explicit PagedRange(const PageCalls& calls, int device) : calls_(calls), device_(device) {}
  Status MapPage(int64_t offset, bool* exhausted);
  Status UnmapPage(int64_t offset);

  const PageCalls& calls_;
  const int device_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::set<int64_t> mapped_;  // offsets of pages
};

}  // namespace terrace::kernels::cuda
