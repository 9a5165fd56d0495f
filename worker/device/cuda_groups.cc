// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda_groups.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/comm/cuda_staging.h"
#include "worker/comm/staged_communicator.h"

namespace terrace {
namespace {

constexpr char kWithoutGraphs[] = " without graphs";

std::string MemoryKey(int meeting, uint32_t rank) {
  return absl::StrCat("device-memory/", meeting, "/", rank);
}

// What a rank on this one's GPU tells of its memory.
absl::StatusOr<int64_t> ToldBy(int meeting, uint32_t rank, RendezvousStore* store,
                               int64_t timeout_ms) {
  const std::string key = MemoryKey(meeting, rank);
  const auto values = store->Wait({key}, timeout_ms);
  if (!values.ok()) {
    return absl::Status(
        values.status().code(),
        absl::StrCat(
            "rank ", rank, ", which shares this rank's GPU, has not said how much of its ",
            "memory it holds; why not is in that rank's log: ", values.status().message()));
  }
  const std::vector<char>& value = values->front();
  int64_t bytes = 0;
  if (!absl::SimpleAtoi(absl::string_view(value.data(), value.size()), &bytes)) {
    return absl::InternalError(absl::StrCat(key, ": got what is no number of bytes"));
  }
  return bytes;
}

}  // namespace

// A rank that does not want graphs says so behind its device.
absl::Status CudaGroups::Meet(uint32_t rank, uint32_t ranks, bool wants_graphs,
                              RendezvousStore* store, int64_t timeout_ms) {
  rank_ = rank;
  timeout_ms_ = timeout_ms;
  all_want_graphs_ = wants_graphs;
  if (ranks == 1) {
    devices_ = {device_.uuid()};
    return absl::OkStatus();
  }
  const std::string own = absl::StrCat(device_.uuid(), wants_graphs ? "" : kWithoutGraphs);
  ASSIGN_OR_RETURN(devices_, ExchangeDevices(rank, ranks, own, store, timeout_ms));
  for (RankDevice& device : devices_) {
    const size_t end = device.find(kWithoutGraphs);
    if (end == std::string::npos) continue;
    device.resize(end);
    all_want_graphs_ = false;
  }
  return absl::OkStatus();
}

absl::StatusOr<CudaGroups::Sharers> CudaGroups::MeetSharers(int64_t own_bytes,
                                                            RendezvousStore* store) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < devices_.size(); ++rank) {
    if (devices_[rank] == device_.uuid()) ranks.push_back(rank);
  }
  if (ranks.size() <= 1) return Sharers{.bytes = own_bytes, .most_bytes = own_bytes};
  const int meeting = meetings_++;
  const std::string own = absl::StrCat(own_bytes);
  RETURN_IF_ERROR(store->Set(MemoryKey(meeting, rank_), {own.begin(), own.end()}));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms_);
  Sharers sharers{.ranks = static_cast<int>(ranks.size())};
  for (uint32_t rank : ranks) {  // one at a time: an error names the one that is missing
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    ASSIGN_OR_RETURN(const int64_t bytes,
                     ToldBy(meeting, rank, store, std::max<int64_t>(1, left.count())));
    sharers.bytes += bytes;
    sharers.most_bytes = std::max(sharers.most_bytes, bytes);
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
    has_nccl_ = true;
    return nccl;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host, ConnectGloo(options, store));
  return StageThroughHost(std::move(host), options, CudaStaging(queue_->stream()));
}

}  // namespace terrace
