// The system calls of the NVMe tier behind a small interface: start a request, wait for some. Two
// engines implement it, io_uring and a pool of threads that call pread and pwrite; tests put a
// third in front of either that fails, shortens, delays or loses requests.
//
// A request's memory belongs to the engine from Start until its result is reaped.
// Thread rule: a BlockIo is used by one thread at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace terrace {

enum class NvmeDirection { kRead, kWrite };

struct BlockRequest {
  NvmeDirection direction = NvmeDirection::kRead;
  int file = 0;  // index into the files that the engine was made for
  int64_t offset = 0;
  std::byte* memory = nullptr;
  int64_t bytes = 0;
  uint32_t slot = 0;  // comes back in the result; no two in flight have the same
};

struct BlockResult {
  uint32_t slot = 0;
  int64_t result = 0;  // bytes moved, perhaps fewer than asked for; or -errno
};

// Thread-compatible.
class BlockIo {
 public:
  virtual ~BlockIo() = default;

  // Prepares `memory` for faster requests where the engine and the limits of the process allow;
  // replaces what was registered before. Never fails: description() tells what came of it.
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
  // At most `depth` requests may be in flight. 0, or -errno and nothing was started.
  virtual int Start(const BlockRequest& request) = 0;
  // Waits for at least one result, at most for `timeout`; the number written to `results`. 0 when
  // the time passed, or earlier when something else ended the wait: the caller watches the clock.
  virtual int Reap(std::span<BlockResult> results, absl::Duration timeout) = 0;
  // "io_uring, registered files, unregistered buffers: memlock 8 MiB".
  virtual std::string description() const = 0;
  // What the system keeps from this engine and how to let it; empty when it has all it wants.
  virtual std::string slower_because() const { return ""; }
};

// What tests wrap around every engine that is made.
using BlockIoWrapper = std::function<std::unique_ptr<BlockIo>(std::unique_ptr<BlockIo>)>;

// `engine`: "io_uring", "threads", or "auto" for io_uring where the system allows it. `files` stay
// open as long as the engine lives. FAILED_PRECONDITION when io_uring was asked for by name and is
// refused.
absl::StatusOr<std::unique_ptr<BlockIo>> NewBlockIo(std::string_view engine,
                                                    std::span<const int> files, int depth);

}  // namespace terrace
