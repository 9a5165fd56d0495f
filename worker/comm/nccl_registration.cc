// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/nccl_registration.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// NCCL maps a peer's memory at the first operation that is large enough for its protocol of
// bandwidth; smaller ones pass through its own buffers.
constexpr int64_t kWarmBytes = 16 << 20;
constexpr int64_t kWarmAlignment = 256;

std::vector<NcclChannel*> ChannelsToRegister(const NcclConnection& connection) {
  std::vector<NcclChannel*> channels;
  if (connection.group->options().one_layout) channels.push_back(connection.collectives.get());
  for (const auto* messages : {&connection.sends, &connection.receives}) {
    for (const auto& [peer, channel] : *messages) channels.push_back(channel.get());
  }
  return channels;
}

// Empty, or why this member cannot.
absl::StatusOr<std::string> RegisterOwn(const NcclMemory& memory,
                                        const std::vector<NcclChannel*>& channels) {
  if (!memory.refusal.empty()) return memory.refusal;
  if (memory.bytes == 0) return "it has none";
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  // NCCL counts from the start of a page: elsewhere members would count from different places.
  if (reinterpret_cast<uintptr_t>(memory.data) % page != 0)
    return absl::StrCat("it does not begin on a page of ", page, " bytes");
  for (NcclChannel* channel : channels) {
    ASSIGN_OR_RETURN(std::string refusal, channel->Register(memory.data, memory.bytes));
    if (!refusal.empty()) return refusal;
  }
  return "";
}

// What each member has registered, 0 for none.
absl::StatusOr<std::vector<int64_t>> Exchange(int64_t own, const NcclConnection& connection,
                                              Communicator* group) {
  const int n = group->size();
  std::vector<int64_t> all(n, -1);
  auto* const shared = reinterpret_cast<int64_t*>(connection.scratch.get());
  static_assert(2 * sizeof(float) == sizeof(int64_t), "the scratch has a place for each member");
  NcclChannel& channel = *connection.collectives;
  RETURN_IF_ERROR(channel.Begin({"agreeing on registered memory", n, "members"}));
  RETURN_IF_ERROR(channel.Copy(shared + group->rank(), &own, sizeof(own)));
  RETURN_IF_ERROR(group->AllGather(shared + group->rank(), shared, sizeof(own)));
  RETURN_IF_ERROR(channel.Begin({"agreeing on registered memory", n, "members"}));
  RETURN_IF_ERROR(channel.Copy(all.data(), shared, n * static_cast<int64_t>(sizeof(own))));
  RETURN_IF_ERROR(channel.Finish());
  return all;
}

// In the order in which the channels were connected, so that no member waits for one that waits
// for another.
absl::Status WarmMessages(std::byte* data, int64_t bytes, const NcclConnection& connection,
                          Communicator* group) {
  for (const auto& [peer, channel] : connection.sends) {
    if (group->rank() < peer) RETURN_IF_ERROR(group->Send(data, bytes, peer));
    RETURN_IF_ERROR(group->Receive(data, bytes, peer));
    if (group->rank() > peer) RETURN_IF_ERROR(group->Send(data, bytes, peer));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> RegisterMemory(const NcclMemory& memory,
                                           const NcclConnection& connection, Communicator* group) {
  if (group->size() == 1) return "";
  const std::vector<NcclChannel*> channels = ChannelsToRegister(connection);
  ASSIGN_OR_RETURN(const std::string refusal, RegisterOwn(memory, channels));
  ASSIGN_OR_RETURN(const std::vector<int64_t> bytes,
                   Exchange(refusal.empty() ? memory.bytes : 0, connection, group));
  const auto least = std::min_element(bytes.begin(), bytes.end());
  if (*least == 0) {
    for (NcclChannel* channel : channels) channel->Deregister();
    if (!refusal.empty()) return refusal;
    return absl::StrCat("rank ", connection.group->RankOf(static_cast<int>(least - bytes.begin())),
                        " cannot register its own");
  }
  const int64_t part =
      std::min(kWarmBytes, *least / group->size()) / kWarmAlignment * kWarmAlignment;
  if (connection.group->options().one_layout) {
    RETURN_IF_ERROR(group->AllGather(memory.data + group->rank() * part, memory.data, part));
  }
  RETURN_IF_ERROR(WarmMessages(memory.data, part, connection, group));
  return "";
}

}  // namespace terrace
