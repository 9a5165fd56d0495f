// What an operator sets about the queue (terrace-coordinator serve --help).
//
// Plain values. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace terrace {

// Bytes on the device, in host memory and on NVMe.
inline constexpr size_t kQueueTiers = 3;
using TierBytes = std::array<int64_t, kQueueTiers>;
inline constexpr std::array<std::string_view, kQueueTiers> kQueueTierNames = {"device", "host",
                                                                              "nvme"};

struct QueueOptions {
  // Of jobs whose spec has no time_limit; 0: none.
  int64_t time_limit_default_seconds = 0;
  // A job that asks for more is refused, and one that asks for nothing gets this; 0: any is taken.
  int64_t time_limit_max_seconds = 0;
  // Of waiting raise a job's priority by 1; 0: waiting does not.
  int64_t priority_age_seconds = 86'400;
  // After which what a user has had of the devices counts half; 0: it does not count.
  int64_t fair_share_half_life_seconds = 7 * 86'400;
  // Devices that the jobs of one user may hold together; 0: any number.
  uint32_t devices_quota = 0;
  std::map<std::string, uint32_t, std::less<>> devices_quota_of;  // in place of that, by user
  // The same of memory, by tier.
  TierBytes bytes_quota = {};
  std::array<std::map<std::string, int64_t, std::less<>>, kQueueTiers> bytes_quota_of;

  // A job that waits may take the devices of jobs whose spec asks for a priority that is at least
  // so much lower; 0: of none. From 2 on, since fair share adds up to 1.
  uint32_t preempt_priority = 0;
  // That a job has had its devices for before they can be taken.
  int64_t preempt_exempt_seconds = 300;

  // A job with resources.nodes MIN:MAX that has had its devices for so long, and has so much to do,
  // starts again when more workers are free for it.
  int64_t grow_after_seconds = 60;

  // Jobs of which nobody knows who submitted them have no quota.
  uint32_t QuotaOf(std::string_view owner) const {
    if (owner.empty()) return 0;
    const auto own = devices_quota_of.find(owner);
    return own == devices_quota_of.end() ? devices_quota : own->second;
  }
  TierBytes BytesQuotaOf(std::string_view owner) const {
    TierBytes quota = {};
    for (size_t tier = 0; tier < kQueueTiers && !owner.empty(); ++tier) {
      const auto own = bytes_quota_of[tier].find(owner);
      quota[tier] = own == bytes_quota_of[tier].end() ? bytes_quota[tier] : own->second;
    }
    return quota;
  }
};

}  // namespace terrace
