// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/host_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr int kCapIpcLock = 14;                     // linux/capability.h
constexpr int64_t kUnlimitedV1 = int64_t{1} << 62;  // v1 says "none" with a huge multiple of a page

// Empty when it cannot be read.
std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

// The number behind `key` in lines like "MemAvailable:  1234 kB" and "file 1234", without the unit.
std::optional<int64_t> Field(const std::string& text, absl::string_view key) {
  for (const std::string& line : Lines(text)) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t:"), absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

std::optional<int64_t> NumberIn(const std::string& path) {
  int64_t value = 0;
  const std::string text = ReadSmallFile(path);
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &value)) return std::nullopt;
  return value;
}

// One version of control groups: how its files are named.
struct Hierarchy {
  bool v2 = false;
  const char* limit;
  const char* usage;
  const char* cache_prefix;  // of the fields in memory.stat that count the whole subtree
};
constexpr Hierarchy kV2 = {true, "memory.max", "memory.current", ""};
constexpr Hierarchy kV1 = {false, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};

// Where a hierarchy is mounted, and which of its folders is seen there.
struct Mount {
  std::string folder, shown;
};

std::optional<Mount> FindMount(const std::string& root, const Hierarchy& hierarchy) {
  for (const std::string& line : Lines(ReadSmallFile(root + "/proc/self/mountinfo"))) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (parts.size() != 2) continue;
    const std::vector<std::string> head = absl::StrSplit(parts[0], ' ', absl::SkipEmpty());
    const std::vector<std::string> tail = absl::StrSplit(parts[1], ' ', absl::SkipEmpty());
    if (head.size() < 5 || tail.size() < 3) continue;
    const std::vector<std::string> options = absl::StrSplit(tail[2], ',');
    const bool found =
        hierarchy.v2 ? tail[0] == "cgroup2"
                     : tail[0] == "cgroup" &&
                           std::find(options.begin(), options.end(), "memory") != options.end();
    if (found) return Mount{head[4], head[3]};
  }
  return std::nullopt;
}

// The process's place in the hierarchy; "0::/path" of v2, "4:memory:/path" of v1.
std::optional<std::string> FindGroup(const std::string& root, const Hierarchy& hierarchy) {
  for (const std::string& line : Lines(ReadSmallFile(root + "/proc/self/cgroup"))) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool found = hierarchy.v2 ? parts[1].empty()
                                    : std::find(controllers.begin(), controllers.end(), "memory") !=
                                          controllers.end();
    if (found) return parts[2];
  }
  return std::nullopt;
}

GroupLimit LimitOf(const std::string& folder, const Hierarchy& hierarchy) {
  GroupLimit limit{.file = absl::StrCat(folder, "/", hierarchy.limit)};
  const auto bytes = NumberIn(limit.file);  // "max" is no number
  if (!bytes || *bytes >= kUnlimitedV1) return limit;
  const std::string stat = ReadSmallFile(folder + "/memory.stat");
  const auto cache = [&](const char* list) {
    return Field(stat, absl::StrCat(hierarchy.cache_prefix, list)).value_or(0);
  };
  const int64_t used = NumberIn(absl::StrCat(folder, "/", hierarchy.usage)).value_or(0) -
                       cache("inactive_file") - cache("active_file");
  limit.limit_bytes = *bytes;
  limit.free_bytes = std::max<int64_t>(0, *bytes - std::max<int64_t>(0, used));
  return limit;
}

// The tightest over the group and its parents, as far as they can be seen.
GroupLimit TightestLimit(const std::string& root, const Hierarchy& hierarchy) {
  const auto mount = FindMount(root, hierarchy);
  auto group = FindGroup(root, hierarchy);
  GroupLimit tightest;
  if (!mount || !group) return tightest;
  // In a container only the part below `shown` is visible.
  if (mount->shown != "/") *group = std::string(absl::StripPrefix(*group, mount->shown));
  while (true) {
    const GroupLimit limit =
        LimitOf(absl::StrCat(root, mount->folder, *group == "/" ? "" : *group), hierarchy);
    if (limit.free_bytes < tightest.free_bytes) tightest = limit;
    if (group->empty() || *group == "/") return tightest;
    group->erase(std::min(group->rfind('/'), group->size()));
  }
}

bool MayLockAnything(const std::string& status) {
  for (const std::string& line : Lines(status)) {
    uint64_t capabilities = 0;
    absl::string_view hex = line;
    if (!absl::ConsumePrefix(&hex, "CapEff:")) continue;
    return absl::SimpleHexAtoi(absl::StripAsciiWhitespace(hex), &capabilities) &&
           (capabilities >> kCapIpcLock & 1) != 0;
  }
  return false;
}

}  // namespace

HostLimits ReadHostLimits(std::string_view root_view) {
  const std::string root(root_view);
  HostLimits limits;
  if (const auto kib = Field(ReadSmallFile(root + "/proc/meminfo"), "MemAvailable"))
    limits.available_bytes = *kib * 1024;
  limits.group = TightestLimit(root, kV2);
  if (GroupLimit v1 = TightestLimit(root, kV1); v1.free_bytes < limits.group.free_bytes)
    limits.group = std::move(v1);
  const std::string status = ReadSmallFile(root + "/proc/self/status");
  rlimit memlock{};
  if (::getrlimit(RLIMIT_MEMLOCK, &memlock) != 0 || memlock.rlim_cur == RLIM_INFINITY ||
      MayLockAnything(status)) {
    return limits;
  }
  limits.memlock_limit_bytes = static_cast<int64_t>(memlock.rlim_cur);
  limits.lockable_bytes =
      std::max<int64_t>(0, limits.memlock_limit_bytes - Field(status, "VmLck").value_or(0) * 1024);
  return limits;
}

}  // namespace terrace
