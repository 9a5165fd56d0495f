// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

// The value of the first line of /proc/cpuinfo that begins with `key`.
std::string ProcessorField(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return "";
}

std::string CacheField(const std::string& folder, int core, int index, const char* name) {
  std::ifstream file(absl::StrCat(folder, "/cpu", core, "/cache/index", index, "/", name));
  std::string line;
  std::getline(file, line);
  return line;
}

// FNV-1a.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

Machine ThisMachine() {
  Machine machine = {.processor = ProcessorField("model name"), .flags = ProcessorField("flags")};
  if (machine.processor.empty()) machine.processor = "unnamed processor";
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    machine.cores = static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
  }
  machine.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return machine;
}

int64_t LastLevelCacheBytes() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return LastLevelCacheBytes("/sys/devices/system/cpu", cores);
}

int64_t LastLevelCacheBytes(const std::string& folder, const std::vector<int>& cores) {
  std::map<std::string, int64_t> caches;  // by the cores that share one
  for (const int core : cores) {
    // Indices count from the innermost cache.
    int last = -1;
    while (!CacheField(folder, core, last + 1, "size").empty()) ++last;
    int64_t kilobytes = 0;
    if (last < 0 || !absl::SimpleAtoi(
                        absl::StripSuffix(CacheField(folder, core, last, "size"), "K"), &kilobytes))
      return 0;
    caches[CacheField(folder, core, last, "shared_cpu_list")] = kilobytes << 10;
  }
  int64_t bytes = 0;
  for (const auto& [shared_by, of_one] : caches) bytes += of_one;
  return bytes;
}

std::string ProfileVersion(std::string_view program_version) {
  // Raised when the probe measures otherwise, so that what was kept before is measured again.
  constexpr int kMeasuredSo = 6;
  return absl::StrCat(std::string(program_version), ".", kMeasuredSo);
}

std::string MachineHash(const Machine& machine, std::string_view version) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const std::string identity =
      absl::StrCat(machine.processor, "\n", machine.flags, "\n", machine.cores, "\n",
                   (machine.memory_bytes + kGiB / 2) / kGiB, "\n", std::string(version));
  return absl::StrFormat("%016x", HashOf(identity));
}

}  // namespace terrace
