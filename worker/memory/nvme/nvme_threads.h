// The NVMe tier's engine where io_uring is blocked: as many threads as requests may be in flight,
// each of which calls pread or pwrite.
//
// Owns the threads. A thread whose call never returns cannot be joined: then it is left behind with
// the state that it shares, and the process is expected to end.
// Thread rule: one caller at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "worker/memory/nvme/nvme_io.h"

namespace terrace {

// Thread-compatible.
class ThreadIo final : public BlockIo {
 public:
  // `why`: what speaks against io_uring, for the description; empty when threads were chosen.
  // RESOURCE_EXHAUSTED when the system gives no thread at all; fewer than `depth` are fine.
  static absl::StatusOr<std::unique_ptr<BlockIo>> Create(std::span<const int> files, int depth,
                                                         std::string_view why);
  ~ThreadIo() override;

  void RegisterMemory(std::span<std::byte>) override {}
  int Start(const BlockRequest& request) override;
  int Reap(std::span<BlockResult> results, absl::Duration timeout) override;
  std::string description() const override;
  std::string slower_because() const override;

 private:
  struct Shared;
  ThreadIo(std::span<const int> files, int depth, std::string_view why);

  const std::string why_;
  const std::shared_ptr<Shared> shared_;  // with threads that may outlive this object
  std::vector<std::thread> threads_;
};

}  // namespace terrace
