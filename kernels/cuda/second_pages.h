// Memory of a device of which pages have second addresses behind it, in any order: an arena in
// which a buffer lies in one piece of addresses and in several of memory.
//
// Memory that is mapped together is one allocation of the driver, because it maps allocations as a
// whole: the arena is cut where a run begins or ends. Owns all of it. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel.h"

struct CUmemAllocationProp_st;  // of the driver

namespace terrace::kernels::cuda {

struct PageCalls;

class SecondPages {
 public:
  struct Run {
    int64_t offset = 0;  // bytes, whole pages inside the memory
    int64_t bytes = 0;
  };

  // On the calling thread's device, `bytes` of memory and, behind it, the runs one after the other.
  // Everything is whole pages (pages.h). `exhausted`: the error is that the device has no more.
  static Status Reserve(int64_t bytes, const std::vector<Run>& runs,
                        std::unique_ptr<SecondPages>* pages, bool* exhausted);
  // `bytes` of memory in one allocation, without second addresses, that other processes can be let
  // at: what libraries that map a peer's memory ask for. Rounded up to what the device recommends.
  static Status ReserveShared(int64_t bytes, std::unique_ptr<SecondPages>* pages, bool* exhausted);
  // Waits for the device first: what was queued may still use them.
  ~SecondPages();
  SecondPages(const SecondPages&) = delete;
  SecondPages& operator=(const SecondPages&) = delete;

  std::byte* data() const { return data_; }

 private:
  explicit SecondPages(const PageCalls& calls) : calls_(calls) {}
  Status Open(int64_t address_bytes);
  Status Create(const CUmemAllocationProp_st& memory, const std::vector<int64_t>& cuts,
                bool* exhausted);
  // The allocations of [offset, offset + bytes) at `at` on.
  Status Map(int64_t offset, int64_t bytes, int64_t at);

  struct Piece {
    int64_t offset = 0;
    int64_t bytes = 0;
    unsigned long long handle = 0;
  };
  const PageCalls& calls_;
  std::byte* data_ = nullptr;
  int64_t address_bytes_ = 0;
  std::vector<Piece> pieces_;  // by offset, without gaps
  std::vector<Run> mapped_;    // of addresses
};

}  // namespace terrace::kernels::cuda
