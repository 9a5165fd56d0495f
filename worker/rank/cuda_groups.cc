// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/cuda_groups.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/comm/cuda_staging.h"
#include "worker/comm/staged_communicator.h"

namespace terrace {

absl::Status CudaGroups::Meet(uint32_t rank, uint32_t ranks, RendezvousStore* store,
                              int64_t timeout_ms) {
  rank_ = rank;
  timeout_ms_ = timeout_ms;
  if (ranks == 1) {
    devices_ = {device_.uuid()};
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(devices_, ExchangeDevices(rank, ranks, device_.uuid(), store, timeout_ms));
  return absl::OkStatus();
}

absl::StatusOr<CudaGroups::Sharers> CudaGroups::MeetSharers(int64_t reserved_bytes,
                                                            RendezvousStore* store) const {
  const auto key = [](size_t rank) { return absl::StrCat("device-memory/", rank); };
  std::vector<std::string> keys;
  for (size_t rank = 0; rank < devices_.size(); ++rank) {
    if (devices_[rank] == device_.uuid()) keys.push_back(key(rank));
  }
  if (keys.size() <= 1) return Sharers{.reserved_bytes = reserved_bytes};
  const std::string own = absl::StrCat(reserved_bytes);
  RETURN_IF_ERROR(store->Set(key(rank_), {own.begin(), own.end()}));
  ASSIGN_OR_RETURN(const auto values, store->Wait(keys, timeout_ms_));
  Sharers sharers{.ranks = static_cast<int>(keys.size())};
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t bytes = 0;
    if (!absl::SimpleAtoi(absl::string_view(values[i].data(), values[i].size()), &bytes)) {
      return absl::InternalError(
          absl::StrCat(keys[i], ": got what is no number of bytes that a rank has reserved"));
    }
    sharers.reserved_bytes += bytes;
  }
  return sharers;
}

absl::StatusOr<std::unique_ptr<Communicator>> CudaGroups::Connect(const GroupOptions& options,
                                                                  RendezvousStore* store) {
  if (queue_ == nullptr) {
    const kernels::Status created = kernels::cuda::Queue::Create(&queue_);
    if (!created.ok()) return absl::InternalError(created.message);
  }
  if (TransportOf(devices_, options.ranks) == Transport::kNccl) {
    ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> nccl,
                     ConnectNccl(options, store, queue_->stream(), &arena_));
    if (const std::string& because = nccl->slower_because(); !because.empty())
      log::Warn("group ", options.name, " is slower than it could be: NCCL copies what it sends",
                ", its memory is not registered: ", because);
    return nccl;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host, ConnectGloo(options, store));
  return StageThroughHost(std::move(host), options, CudaStaging(queue_->stream()));
}

}  // namespace terrace
