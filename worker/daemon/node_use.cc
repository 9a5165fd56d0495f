// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/node_use.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// A server has a few sockets with some domains each.
constexpr int kPackagesMax = 64;
constexpr int kPartsMax = 8;

int64_t AvailableOf(const std::string& meminfo) {
  std::ifstream file(meminfo);
  for (std::string key, unit; file >> key;) {
    int64_t kibibytes = 0;
    if (!(file >> kibibytes)) return 0;
    std::getline(file, unit);
    if (key == "MemAvailable:") return kibibytes << 10;
  }
  return 0;
}

// CAP_IPC_LOCK, for which RLIMIT_MEMLOCK does not count.
bool MayLockAll() {
  constexpr int kCapIpcLock = 14;
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("CapEff:", 0) == 0)
      return (std::strtoull(line.c_str() + 7, nullptr, 16) >> kCapIpcLock & 1) != 0;
  }
  return false;
}

int64_t NumberIn(const std::string& path) {
  int64_t number = -1;
  std::ifstream(path) >> number;
  return number;
}

std::string WordIn(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

}  // namespace

void NodeUseReader::ReadEnergy(const std::string& folder, const std::string& name) {
  const int64_t now_uj = NumberIn(folder + "/energy_uj");
  if (now_uj < 0) return;
  const auto [found, first] = domains_.try_emplace(name, Domain{.last_uj = now_uj});
  if (first) return;
  Domain& domain = found->second;
  int64_t passed_uj = now_uj - domain.last_uj;
  if (passed_uj < 0) passed_uj += NumberIn(folder + "/max_energy_range_uj");
  if (passed_uj > 0) domain.joules += static_cast<double>(passed_uj) * 1e-6;
  domain.last_uj = now_uj;
}

NodeUse NodeUseReader::Read() {
  NodeUse use{.host_available_bytes = AvailableOf(roots_.meminfo)};
  rlimit limit = {};
  const bool limited =
      getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && !MayLockAll();
  if (limited) use.lock_limit_bytes = static_cast<int64_t>(limit.rlim_cur);
  for (int package = 0; package < kPackagesMax; ++package) {
    const std::string folder = absl::StrCat(roots_.powercap, "/intel-rapl:", package);
    const std::string name = WordIn(folder + "/name");
    if (name.empty()) break;
    ReadEnergy(folder, name);
    for (int part = 0; part < kPartsMax; ++part) {
      const std::string inner = absl::StrCat(folder, ":", part);
      const std::string inner_name = WordIn(inner + "/name");
      if (inner_name.empty()) break;
      ReadEnergy(inner, absl::StrCat(name, "/", inner_name));
    }
  }
  for (const auto& [name, domain] : domains_) use.joules[name] = domain.joules;
  return use;
}

int64_t AvailableBytes(const std::string& path) {
  struct statvfs info = {};
  if (path.empty() || statvfs(path.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace terrace
