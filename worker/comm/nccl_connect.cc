// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/nccl_connect.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/interface_address.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

// A kernel of a message may wait long for its peer. With so few blocks each, those of all
// directions have room beside any other kernel: none waits for a place that a waiting one has.
constexpr int kMessageCtas = 4;

// NCCL reads its environment once, at its first call. What is set already stays.
void PrepareEnvironment(const std::string& interface_address) {
  static std::once_flag once;
  std::call_once(once, [&] {
    // Switches add in an order of their own: the maintainers call it not deterministic.
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    // Every algorithm's connections are made with the group, not at the first call that is large
    // enough to want them: a rank's memory is measured before its first step.
    ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    // Graphs would register operands of their own accord, which asks all members to have them at
    // one place; arenas are registered where that is so (nccl_registration.h).
    ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
    // No call of a group is under way while a graph is that holds others: what keeps those in order
    // costs time, and is known to hang where one graph holds several groups.
    ::setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
    const std::string name = interface_address.empty() ? "" : InterfaceOf(interface_address);
    if (!name.empty()) ::setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", name).c_str(), 0);
  });
}

absl::Status CannotConnect(const GroupOptions& options, std::string_view why) {
  return absl::UnavailableError(absl::StrCat("group ", options.name, ": cannot connect member ",
                                             options.rank, " of ", options.size, ": ", Absl(why)));
}

// Made by one member, found by the others.
absl::StatusOr<ncclUniqueId> AgreeOnId(const GroupOptions& options, RendezvousStore* store,
                                       const std::string& use, bool makes_it) {
  const std::string key = absl::StrCat(options.name, "/nccl/", use);
  ncclUniqueId id = {};
  if (makes_it) {
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) {
      return CannotConnect(options, absl::StrCat("NCCL: ", ncclGetErrorString(result), ": ",
                                                 ncclGetLastError(nullptr)));
    }
    RETURN_IF_ERROR(store->Set(key, {id.internal, id.internal + sizeof(id.internal)}));
    return id;
  }
  const auto values = store->Wait({key}, options.timeout_ms);
  if (!values.ok()) return CannotConnect(options, Std(values.status().message()));
  if (values->front().size() != sizeof(id.internal)) {
    return CannotConnect(options, absl::StrCat(key, " holds ", values->front().size(),
                                               " bytes, must be ", sizeof(id.internal)));
  }
  std::memcpy(id.internal, values->front().data(), sizeof(id.internal));
  return id;
}

// The messages of this rank in one direction.
absl::StatusOr<std::unique_ptr<NcclChannel>> ConnectMessages(NcclGroup* group,
                                                             RendezvousStore* store, int from,
                                                             int to) {
  const GroupOptions& options = group->options();
  const bool sends = options.rank == from;
  ASSIGN_OR_RETURN(const ncclUniqueId id,
                   AgreeOnId(options, store, absl::StrCat(from, "-", to), sends));
  const NcclChannel::Place place = {sends ? kSender : kReceiver, 2, kMessageCtas};
  return NcclChannel::Connect(group, place, id, nullptr);
}

// All members take their pairs in one order, by the lower member and then by the higher: nobody
// waits for a member that waits for another pair.
absl::Status ConnectPeers(RendezvousStore* store, NcclConnection* connection) {
  const GroupOptions& options = connection->group->options();
  for (const int peer : std::set<int>(options.message_peers.begin(), options.message_peers.end())) {
    if (peer < 0 || peer >= options.size || peer == options.rank) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", options.name, ": message_peers: got member ", peer, " of ",
                       options.size, ", must be another one than ", options.rank));
    }
    const auto send = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(connection->sends[peer],
                       ConnectMessages(connection->group.get(), store, options.rank, peer));
      return absl::OkStatus();
    };
    if (options.rank < peer) RETURN_IF_ERROR(send());
    ASSIGN_OR_RETURN(connection->receives[peer],
                     ConnectMessages(connection->group.get(), store, peer, options.rank));
    if (options.rank > peer) RETURN_IF_ERROR(send());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NcclConnection> ConnectNcclChannels(const GroupOptions& options,
                                                   RendezvousStore* store, CUstream_st* stream) {
  PrepareEnvironment(options.interface_address);
  NcclConnection connection;
  connection.group = std::make_unique<NcclGroup>(options);
  ncclUniqueId id = {};
  if (options.size > 1) {
    ASSIGN_OR_RETURN(id, AgreeOnId(options, store, "all", options.rank == 0));
  }
  ASSIGN_OR_RETURN(
      connection.collectives,
      NcclChannel::Connect(connection.group.get(), {options.rank, options.size}, id, stream));
  RETURN_IF_ERROR(ConnectPeers(store, &connection));
  const size_t bytes = 2 * (options.size + 1) * sizeof(float);
  void* scratch = nullptr;
  cudaError_t error = cudaMalloc(&scratch, bytes);
  connection.scratch.reset(static_cast<float*>(scratch));
  if (error == cudaSuccess) error = cudaMemset(scratch, 0, bytes);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    return absl::ResourceExhaustedError(
        absl::StrCat("group ", options.name, ": cannot reserve ", bytes,
                     " bytes of device memory: ", cudaGetErrorString(error)));
  }
  return connection;
}

}  // namespace terrace
