// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/memory_cgroup.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

int64_t ReservedBytes(const v1::RankMemory& memory, v1::Tier tier) {
  for (const v1::TierMemory& line : memory.tiers()) {
    if (line.tier() == tier) return std::max(line.reserved_bytes(), line.predicted_bytes());
  }
  return 0;
}

int64_t DeviceLimit(const v1::RankMemory& memory) {
  for (const v1::TierMemory& line : memory.tiers()) {
    if (line.tier() == v1::DEVICE) return line.limit_bytes();
  }
  return 0;
}

bool IsNear(int64_t bytes, const std::optional<int64_t>& limit) {
  return limit.has_value() &&
         bytes > static_cast<int64_t>((1 - kHardLimitReserve) * static_cast<double>(*limit));
}

}  // namespace

HardLimits ReadHardLimits(int64_t pid) {
  HardLimits limits;
  if (const auto cgroup = MemoryCgroup::Find(pid, {}); cgroup.has_value()) {
    limits.cgroup = cgroup->name();
    limits.cgroup_bytes = cgroup->LimitBytes();
  }
  rlimit space;
  if (prlimit(static_cast<pid_t>(pid), RLIMIT_AS, nullptr, &space) == 0 &&
      space.rlim_cur != RLIM_INFINITY) {
    limits.address_space_bytes = static_cast<int64_t>(space.rlim_cur);
  }
  int64_t pages = 0;
  std::ifstream(absl::StrCat("/proc/", pid, "/statm")) >> pages;
  limits.address_space_used_bytes = pages * sysconf(_SC_PAGE_SIZE);
  return limits;
}

bool HoldsMoreThanPlanned(const v1::RankMemory& memory) {
  return !memory.tiers().empty() && memory.external_bytes() > memory.external_allowed_bytes();
}

std::string ExceededLimit(const v1::RankMemory& memory, const v1::RankConfig& config,
                          const HardLimits& hard) {
  if (!HoldsMoreThanPlanned(memory)) return "";
  const int64_t external = memory.external_bytes();
  const int64_t device = ReservedBytes(memory, v1::DEVICE);
  const bool device_is_ram = config.spec().resources().device() != "cuda";
  // What a GPU's rank has outside its arena it has on the device.
  const int64_t held = (device_is_ram ? device + external : 0) + ReservedBytes(memory, v1::HOST);
  const int64_t together = held * std::max<uint32_t>(1, config.local_ranks());
  std::string limit;
  if (device_is_ram && DeviceLimit(memory) > 0 && device + external > DeviceLimit(memory)) {
    limit = absl::StrCat(FormatBytes(device + external), " with its device arena, and ",
                         FormatBytes(DeviceLimit(memory)), " is its limit");
  } else if (IsNear(together, hard.cgroup_bytes)) {
    limit = absl::StrCat(FormatBytes(together), " with all arenas of the ranks here, near the ",
                         FormatBytes(*hard.cgroup_bytes), " of control group ", hard.cgroup);
  } else if (IsNear(hard.address_space_used_bytes, hard.address_space_bytes)) {
    limit = absl::StrCat(FormatBytes(hard.address_space_used_bytes),
                         " of address space in all, near its ulimit of ",
                         FormatBytes(*hard.address_space_bytes));
  } else {
    return "";
  }
  return absl::StrCat("outside the arenas it holds ", FormatBytes(external), " (",
                      FormatBytes(memory.external_allowed_bytes()), " allowed): ", limit);
}

bool DiedOfMemory(const MemoryFacts& facts, const std::string& last_line) {
  return OomKilled(facts) ||
         (absl::StrContains(last_line, "bad_alloc") && !absl::StrContains(facts.how, "signal 9"));
}

}  // namespace terrace
