// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/cuda_groups.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "worker/comm/cuda_staging.h"
#include "worker/comm/staged_communicator.h"

namespace terrace {

absl::Status CudaGroups::Meet(uint32_t rank, uint32_t ranks, RendezvousStore* store,
                              int64_t timeout_ms) {
  if (ranks == 1) {
    devices_ = {device_.uuid()};
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(devices_, ExchangeDevices(rank, ranks, device_.uuid(), store, timeout_ms));
  return absl::OkStatus();
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
