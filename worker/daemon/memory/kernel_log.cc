// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

constexpr size_t kRecordBytesMax = 8192;  // the kernel's limit
constexpr int kRecordsMax = 1 << 17;

// "6,1234,98765432,-;Memory cgroup out of memory: Killed process 4711 (terrace-rank) ..."
bool Says(std::string_view record, const std::string& words, int64_t since_us) {
  int64_t microseconds = 0;
  const std::string text(record);
  return std::sscanf(text.c_str(), "%*d,%*d,%" SCNd64, &microseconds) == 1 &&
         microseconds >= since_us && absl::StrContains(text, words);
}

}  // namespace

bool OomKillIsLogged(int64_t pid, int64_t now_since_boot_us, const std::string& path) {
  const UniqueFd log(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.valid()) return false;
  const std::string words = absl::StrCat("Killed process ", pid, " (terrace-rank)");
  const int64_t since_us = now_since_boot_us - kOomRecordSeconds * 1'000'000;
  char bytes[kRecordBytesMax];
  for (int i = 0; i < kRecordsMax; ++i) {
    const ssize_t length = read(log.get(), bytes, sizeof bytes);
    if (length < 0 && errno == EPIPE) continue;  // overwritten meanwhile: goes on with the oldest
    if (length <= 0) return false;
    for (const absl::string_view line :
         absl::StrSplit(absl::string_view(bytes, static_cast<size_t>(length)), '\n')) {
      if (Says({line.data(), line.size()}, words, since_us)) return true;
    }
  }
  return false;
}

}  // namespace terrace
