// A backend that another one does the work of, for tests that change a part of it.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "worker/device/backend.h"

namespace terrace {

class PassedOnBackend : public Backend {
 public:
  explicit PassedOnBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  std::string description() const override { return backend_->description(); }
  bool device_is_host() const override { return backend_->device_is_host(); }
  absl::StatusOr<std::unique_ptr<Region>> ReserveDevice(const std::string& name,
                                                        const ArenaExtent& extent,
                                                        int threads) override {
    return backend_->ReserveDevice(name, extent, threads);
  }
  std::unique_ptr<SegmentSource> NewSegments(int threads) override {
    return backend_->NewSegments(threads);
  }
  absl::StatusOr<std::unique_ptr<Pin>> PinHost(std::span<std::byte> memory) override {
    return backend_->PinHost(memory);
  }
  absl::StatusOr<std::span<std::byte>> Staging(int64_t bytes) override {
    return backend_->Staging(bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(v1::StreamKind kind) override {
    return backend_->NewQueue(kind);
  }
  std::unique_ptr<DeviceQueue> NewCollectiveQueue() override {
    return backend_->NewCollectiveQueue();
  }
  bool uses_graphs() const override { return backend_->uses_graphs(); }
  absl::Status MeetRanks(uint32_t rank, uint32_t ranks, RendezvousStore* store,
                         int64_t timeout_ms) override {
    return backend_->MeetRanks(rank, ranks, store, timeout_ms);
  }
  bool one_collective_at_a_time() const override { return backend_->one_collective_at_a_time(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupOptions& options,
                                                        RendezvousStore* store) override {
    return backend_->Connect(options, store);
  }
  absl::Status EnterThread() override { return backend_->EnterThread(); }
  absl::Status CheckRun() override { return backend_->CheckRun(); }
  absl::StatusOr<int64_t> ExternalBytes(int64_t reserved_bytes, RendezvousStore* store) override {
    return backend_->ExternalBytes(reserved_bytes, store);
  }
  DriverUse AskDriver() override { return backend_->AskDriver(); }

 private:
  const std::unique_ptr<Backend> backend_;
};

}  // namespace terrace
