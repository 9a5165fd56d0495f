// SPDX-License-Identifier: Apache-2.0
#include "base/memory_cgroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// Version 1 writes "no limit" as the largest number of pages.
constexpr int64_t kUnlimited = int64_t{1} << 62;
// Of the files that stay open: a number, or a few lines of events.
constexpr size_t kOpenFileBytesMax = 512;

std::optional<int64_t> Number(const std::string& text) {
  int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || text.empty()) return std::nullopt;
  return number;
}

std::optional<int64_t> ReadNumber(std::istream&& file) {
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return Number(word);
}

// The value behind `key` in "key value" lines.
std::optional<int64_t> ReadKey(std::istream&& file, std::string_view key) {
  for (std::string name, value; file >> name >> value;) {
    if (name == key) return Number(value);
  }
  return std::nullopt;
}

UniqueFd OpenToRead(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// From its beginning; empty when it cannot be read.
std::istringstream Text(const UniqueFd& file) {
  char text[kOpenFileBytesMax];
  const ssize_t length = pread(file.get(), text, sizeof text, 0);
  return std::istringstream(std::string(text, static_cast<size_t>(std::max<ssize_t>(length, 0))));
}

bool Names(std::string_view controllers, std::string_view wanted) {
  return absl::StrCat(",", absl::string_view(controllers.data(), controllers.size()), ",")
             .find(absl::StrCat(",", absl::string_view(wanted.data(), wanted.size()), ",")) !=
         std::string::npos;
}

}  // namespace

std::optional<MemoryCgroup> MemoryCgroup::Find(int64_t pid, const Roots& roots) {
  std::ifstream file(absl::StrCat(roots.proc, "/", pid, "/cgroup"));
  std::optional<MemoryCgroup> found;
  for (std::string line; std::getline(file, line);) {  // "4:memory:/name", of version 2 "0::/name"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string name = line.substr(second + 1);
    const int version = controllers.empty() ? 2 : 1;
    if (version == 1 && !Names(controllers, "memory")) continue;
    const std::string root = version == 1 ? roots.cgroup + "/memory" : roots.cgroup;
    const std::string probe = version == 1 ? "/memory.usage_in_bytes" : "/memory.events";
    // Inside a container its own group may be mounted as the root.
    for (const std::string& folder : {root + name, root}) {
      if (!std::filesystem::exists(folder + probe)) continue;
      if (version == 1 || !found.has_value()) found = MemoryCgroup(version, name, root, folder);
      break;
    }
  }
  return found;
}

MemoryCgroup::MemoryCgroup(int version, std::string name, std::string root, std::string folder)
    : version_(version),
      name_(std::move(name)),
      root_(std::move(root)),
      folder_(std::move(folder)),
      used_(OpenToRead(folder_ + (version == 1 ? "/memory.usage_in_bytes" : "/memory.current"))),
      events_(OpenToRead(folder_ + (version == 1 ? "/memory.oom_control" : "/memory.events"))) {}

std::optional<int64_t> MemoryCgroup::LimitBytes() const {
  std::optional<int64_t> limit;
  if (version_ == 1) {
    limit = ReadKey(std::ifstream(folder_ + "/memory.stat"), "hierarchical_memory_limit");
  } else {
    for (std::filesystem::path folder = folder_; folder.string().size() >= root_.size();
         folder = folder.parent_path()) {
      const auto own = ReadNumber(std::ifstream(folder / "memory.max"));  // "max" is none
      if (own.has_value()) limit = std::min(limit.value_or(*own), *own);
      if (folder == folder.parent_path()) break;
    }
  }
  if (limit.has_value() && *limit >= kUnlimited) limit.reset();
  return limit;
}

std::optional<int64_t> MemoryCgroup::UsedBytes() const { return ReadNumber(Text(used_)); }

std::optional<int64_t> MemoryCgroup::OomKills() const { return ReadKey(Text(events_), "oom_kill"); }

}  // namespace terrace
