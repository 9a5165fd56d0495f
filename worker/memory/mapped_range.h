// A range of addresses of which pages get memory and give it back, without anything that lies in it
// being moved: what a caching allocator's segment grows in. The twin of CUDA's virtual memory
// (kernels/cuda/pages.h).
//
// What is mapped is memory of a file that has no name but in /proc/<pid>/maps, there from the call
// on: a page that the system cannot give is refused by Map and is no signal later. The rest of the
// range is inaccessible, and so are pages on both sides of it.
//
// Owns addresses and memory. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

class MappedRange {
 public:
  static constexpr int64_t kAlignment = 2 << 20;  // of data()

  // RESOURCE_EXHAUSTED with the bytes when the system has no such range.
  static absl::StatusOr<MappedRange> Reserve(std::string_view name, int64_t bytes);
  MappedRange(MappedRange&& other) noexcept;
  MappedRange& operator=(MappedRange&&) = delete;
  ~MappedRange();

  std::byte* data() const { return data_; }
  // Offsets and sizes are whole system pages inside the range. RESOURCE_EXHAUSTED with what the
  // system says; then nothing of it is mapped. The memory is zero.
  absl::Status Map(int64_t offset, int64_t bytes);
  void Unmap(int64_t offset, int64_t bytes);

 private:
  MappedRange(UniqueFd file, std::byte* span, int64_t span_bytes, std::byte* data)
      : file_(std::move(file)), span_(span), span_bytes_(span_bytes), data_(data) {}

  UniqueFd file_;
  std::byte* span_ = nullptr;  // guard pages included
  int64_t span_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace terrace
