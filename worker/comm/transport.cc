// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/transport.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {

Transport TransportOf(std::span<const RankDevice> devices, std::span<const uint32_t> members) {
  const auto on_cpu = [&](uint32_t rank) { return devices[rank].empty(); };
  const auto alone = [&](uint32_t rank) {
    return std::count(devices.begin(), devices.end(), devices[rank]) == 1;
  };
  if (std::all_of(members.begin(), members.end(), on_cpu)) return Transport::kGloo;
  if (std::none_of(members.begin(), members.end(), on_cpu) &&
      std::all_of(members.begin(), members.end(), alone)) {
    return Transport::kNccl;
  }
  return Transport::kStagedGloo;
}

absl::StatusOr<std::vector<RankDevice>> ExchangeDevices(uint32_t rank, uint32_t ranks,
                                                        const RankDevice& own,
                                                        RendezvousStore* store,
                                                        int64_t timeout_ms) {
  const auto key = [](uint32_t of) { return absl::StrCat("device/", of); };
  RETURN_IF_ERROR(store->Set(key(rank), {own.begin(), own.end()}));
  std::vector<std::string> keys;
  for (uint32_t other = 0; other < ranks; ++other) keys.push_back(key(other));
  ASSIGN_OR_RETURN(const std::vector<std::vector<char>> values, store->Wait(keys, timeout_ms));
  std::vector<RankDevice> devices;
  for (const std::vector<char>& value : values) devices.emplace_back(value.begin(), value.end());
  return devices;
}

}  // namespace terrace
