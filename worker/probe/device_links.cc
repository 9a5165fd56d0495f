// What sums over the GPUs of this machine take: ranks as threads of this process, linked as ranks
// of a job are.
//
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "worker/probe/device.h"
#include "worker/probe/link.h"

namespace terrace {
namespace {

constexpr int64_t kTimeoutMs = 30'000;  // the first group of a process loads the library

// Owns the rank's device, memory and group. Used on the thread that joined.
class DeviceMember final : public LinkMember {
 public:
  static absl::StatusOr<std::unique_ptr<LinkMember>> Join(int rank, int size, int64_t elements,
                                                          RendezvousStore* store) {
    auto member = std::make_unique<DeviceMember>();
    ASSIGN_OR_RETURN(member->backend_, OpenBackend("cuda", rank));
    RETURN_IF_ERROR(member->backend_->EnterThread());
    const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
    ASSIGN_OR_RETURN(member->memory_, member->backend_->ReserveDevice(
                                          "link", {.bytes = bytes, .shareable = true}, 1));
    RETURN_IF_ERROR(member->memory_->Zero(0, bytes));
    RETURN_IF_ERROR(member->backend_->MeetRanks(static_cast<uint32_t>(rank),
                                                static_cast<uint32_t>(size), store, kTimeoutMs));
    GroupOptions options = {.name = "probe",
                            .rank = rank,
                            .size = size,
                            .interface_address = "127.0.0.1",
                            .timeout_ms = kTimeoutMs,
                            .all_to_all = false,
                            .one_layout = true};  // as groups of data parallel ranks
    for (int other = 0; other < size; ++other)
      options.ranks.push_back(static_cast<uint32_t>(other));
    ASSIGN_OR_RETURN(member->group_, member->backend_->Connect(options, store));
    return member;
  }

  Communicator* group() override { return group_.get(); }
  void* data() override { return memory_->device_data(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Region> memory_;
  std::unique_ptr<Communicator> group_;  // goes first
};

}  // namespace

absl::Status MeasureDeviceLinks(const DeviceProbe& probe, v1::HardwareProfile* profile) {
  return MeasureRings({.ranks_max = probe.ranks,
                       .elements = probe.link_elements,
                       .calls = probe.link_calls,
                       .join =
                           [&](int rank, int size, RendezvousStore* store) {
                             return DeviceMember::Join(rank, size, probe.link_elements, store);
                           }},
                      profile)
      .status();
}

}  // namespace terrace
