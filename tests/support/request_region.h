// A region without addresses, as a file on NVMe is one: bytes that somebody else owns, reached by
// requests alone. It keeps the largest request, counts them, and fails one on demand.
//
// Thread-safe, as a region must be, for requests that do not meet.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "tests/support/memory_region.h"
#include "worker/memory/region.h"

namespace terrace {

class RequestRegion final : public Region {
 public:
  explicit RequestRegion(std::span<std::byte> memory) : memory_(memory), region_(memory) {}

  // The n-th request from now on (1: the next) and all after it end with `status`.
  void FailAt(int64_t n, absl::Status status) {
    fail_at_ = requests_ + n;
    failure_ = std::move(status);
  }

  std::byte* data() const override { return nullptr; }
  int64_t bytes() const override { return region_.bytes(); }
  absl::Status Read(int64_t offset, std::span<std::byte> to) override {
    ++reads_;
    if (const absl::Status refused = Count(offset, to.size()); !refused.ok()) return refused;
    return region_.Read(offset, to);
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override {
    if (const absl::Status refused = Count(offset, from.size()); !refused.ok()) return refused;
    return region_.Write(offset, from);
  }

  // What lies in it, for the test.
  std::span<std::byte> memory() const { return memory_; }
  int64_t requests() const { return requests_; }
  int64_t reads() const { return reads_; }
  int64_t largest_request_bytes() const { return largest_; }
  // Requests of more than a megabyte that neither begin nor end on a page.
  int64_t ragged_requests() const { return ragged_; }

 private:
  absl::Status Count(int64_t offset, int64_t bytes) {
    constexpr int64_t kPage = 4096;
    const int64_t request = ++requests_;
    if (bytes > (1 << 20) && offset % kPage != 0 && (offset + bytes) % kPage != 0) ++ragged_;
    int64_t largest = largest_;
    while (bytes > largest && !largest_.compare_exchange_weak(largest, bytes)) {
    }
    return fail_at_ > 0 && request >= fail_at_ ? failure_ : absl::OkStatus();
  }

  const std::span<std::byte> memory_;
  MemoryRegion region_;
  std::atomic<int64_t> requests_ = 0, reads_ = 0, largest_ = 0, ragged_ = 0;
  int64_t fail_at_ = 0;  // set while nothing is requested
  absl::Status failure_;
};

}  // namespace terrace
