// What moves state between files and memory that has no address: work in windows, each through a
// block that is used again for the next one, so that the memory needed does not grow with the
// state.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace terrace {

// All blocks of one operation together, but every thread has at least kLeastWindowBytes.
inline constexpr int64_t kBlockBytes = 8 << 20;
inline constexpr int64_t kLeastWindowBytes = 256 << 10;
// Windows begin and end on its multiples, where they can.
inline constexpr int64_t kPageBytes = 4096;
// Where some of the state has no address: one waits for the device while the other works on a file.
inline constexpr int kLeastThreadsWithoutAddress = 2;

// Memory that is allocated when it is first asked for. Bytes of a region whose offset has the same
// remainder by kPageBytes as their place in here can be moved without a copy, also by a device.
// Thread-compatible.
class Block {
 public:
  explicit Block(int64_t bytes) : bytes_(bytes) {}
  // Room for `bytes` that lie at `offset` in a region. REQUIRES: bytes is at most what the block
  // was made for.
  std::span<std::byte> For(int64_t offset, int64_t bytes);

 private:
  struct Free {
    void operator()(std::byte* data) const {
      ::operator delete (data, std::align_val_t{kPageBytes});
    }
  };
  const int64_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

// How large the windows of `threads` threads are.
int64_t WindowBytes(int threads);

// The end of the window that begins at `offset`: on a multiple of `window`, so that all but the
// ends of what is cut are whole pages of the region.
inline int64_t WindowEnd(int64_t offset, int64_t window) { return (offset / window + 1) * window; }

// Calls work(i, block) for each i below `count`, on `threads` threads, each with a block of
// WindowBytes(threads). Of the failures the one of the lowest i; after a failure nothing new is
// begun.
absl::Status ForEachWindow(size_t count, int threads,
                           const std::function<absl::Status(size_t, Block*)>& work);

// The same code; the message says what was done to which tensor.
absl::Status WithTensor(const absl::Status& status, std::string_view action,
                        std::string_view tensor);

}  // namespace terrace
