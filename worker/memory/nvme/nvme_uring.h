// The NVMe tier's engine on io_uring: one ring, its files registered, and the host's memory too
// where RLIMIT_MEMLOCK allows to pin it.
//
// Owns the ring. Thread rule: one thread at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "worker/memory/nvme/nvme_io.h"

namespace terrace {

// Thread-compatible.
class UringIo final : public BlockIo {
 public:
  // FAILED_PRECONDITION with the reason when the system refuses io_uring.
  static absl::StatusOr<std::unique_ptr<UringIo>> Create(std::span<const int> files, int depth);
  ~UringIo() override;

  void RegisterMemory(std::span<std::byte> memory) override;
  int Start(const BlockRequest& request) override;
  int Reap(std::span<BlockResult> results, absl::Duration timeout) override;
  std::string description() const override;
  std::string slower_because() const override;

 private:
  struct Ring;
  explicit UringIo(std::unique_ptr<Ring> ring);

  const std::unique_ptr<Ring> ring_;
};

}  // namespace terrace
