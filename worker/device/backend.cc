// The host as its own device, and the choice between backends.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/device/backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/memory/arena.h"
#include "worker/memory/caching_segments.h"
#include "worker/memory/process_memory.h"

namespace terrace {
namespace {

class CpuBackend final : public Backend {
 public:
  std::string description() const override { return "CPU"; }
  bool device_is_host() const override { return true; }

  absl::StatusOr<std::unique_ptr<Region>> ReserveDevice(const std::string& name,
                                                        const ArenaExtent& extent,
                                                        int threads) override {
    ASSIGN_OR_RETURN(Arena arena, Arena::Reserve(name, extent));
    auto region = std::make_unique<Arena>(std::move(arena));
    region->Touch(threads);
    return std::unique_ptr<Region>(std::move(region));
  }
  std::unique_ptr<SegmentSource> NewSegments(int threads) override {
    return std::make_unique<MappedSegments>(threads);
  }
  absl::StatusOr<std::unique_ptr<Pin>> PinHost(std::span<std::byte>) override {
    return std::unique_ptr<Pin>();
  }
  absl::StatusOr<std::span<std::byte>> Staging(int64_t) override {
    return absl::InternalError("the CPU backend stages nothing");
  }
  absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(v1::StreamKind) override {
    return std::unique_ptr<DeviceQueue>();
  }
  absl::Status MeetRanks(uint32_t, uint32_t, RendezvousStore*, int64_t) override {
    return absl::OkStatus();
  }
  bool one_collective_at_a_time() const override { return false; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupOptions& options,
                                                        RendezvousStore* store) override {
    return ConnectGloo(options, store);
  }
  absl::Status EnterThread() override { return absl::OkStatus(); }
  absl::Status CheckRun() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> ExternalBytes(int64_t, RendezvousStore*) override {
    return terrace::ExternalBytes();
  }
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend() { return std::make_unique<CpuBackend>(); }

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(std::string_view device, int ordinal) {
  if (device.empty() || device == "cpu") return MakeCpuBackend();
  if (device == "cuda") return OpenCudaBackend(ordinal);
  return absl::InvalidArgumentError(absl::StrCat("program.device: got '", Absl(device),
                                                 "', must be cpu or cuda; compile the job again"));
}

}  // namespace terrace
