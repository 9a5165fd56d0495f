// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/cpu_watch.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/strings.h"

namespace terrace {
namespace {

// Of the processors' time. The system's own work on an idle machine is about one percent.
constexpr double kOthersShareMax = 0.08;
constexpr double kStolenShareMax = 0.04;
// On quiet machines 1.05 to 1.3, beside as much other work as there are processors about 2.
constexpr double kSpreadMax = 1.5;

// Columns of a line of /proc/stat. Those of guests are in user and nice already.
enum Column { kUser, kNice, kSystem, kIdle, kIoWait, kIrq, kSoftIrq, kSteal, kColumns };

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

int Percent(double share) { return static_cast<int>(std::lround(100 * share)); }

}  // namespace

CpuTimes ParseCpuTimes(std::string_view stat, double ticks_per_second,
                       const std::function<bool(int)>& is_ours) {
  CpuTimes times;
  for (absl::string_view line : absl::StrSplit(Absl(stat), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int cpu = 0;
    if (words.size() <= kColumns || words[0].substr(0, 3) != "cpu" ||
        !absl::SimpleAtoi(words[0].substr(3), &cpu) || !is_ours(cpu)) {
      continue;
    }
    std::array<double, kColumns> seconds = {};
    for (size_t i = 0; i < seconds.size(); ++i) {
      if (absl::SimpleAtod(words[i + 1], &seconds[i])) seconds[i] /= ticks_per_second;
    }
    for (const double column : seconds) times.all += column;
    times.stolen += seconds[kSteal];
    times.busy +=
        seconds[kUser] + seconds[kNice] + seconds[kSystem] + seconds[kIrq] + seconds[kSoftIrq];
  }
  return times;
}

CpuTimes CpuTimesNow() {
  cpu_set_t ours;
  CPU_ZERO(&ours);
  sched_getaffinity(0, sizeof ours, &ours);
  std::ifstream in("/proc/stat");
  std::stringstream text;
  text << in.rdbuf();
  CpuTimes times = ParseCpuTimes(
      text.str(), static_cast<double>(sysconf(_SC_CLK_TCK)),
      [&ours](int cpu) { return cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &ours); });
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(who, &used);
    times.own += Seconds(used.ru_utime) + Seconds(used.ru_stime);
  }
  return times;
}

std::string DisturbanceBetween(const CpuTimes& before, const CpuTimes& after) {
  const double all = after.all - before.all;
  if (all <= 0) return "";
  const double others = (after.busy - before.busy - (after.own - before.own)) / all;
  const double stolen = (after.stolen - before.stolen) / all;
  std::string found;
  if (others > kOthersShareMax) {
    absl::StrAppend(&found, "other processes used ", Percent(others), " % of its processors");
  }
  if (stolen > kStolenShareMax) {
    absl::StrAppend(&found, found.empty() ? "" : " and ", "the hypervisor took ", Percent(stolen),
                    " % of them");
  }
  return found.empty() ? "" : absl::StrCat("while it was measured ", found);
}

std::string CpuWatch::End() {
  const std::string disturbed = DisturbanceBetween(before_, CpuTimesNow());
  if (!disturbed.empty()) return disturbed;
  if (!cut_short_.empty()) return cut_short_;
  if (spread_ < kSpreadMax) return "";
  return absl::StrFormat("the same calls took up to %.1f times as long as at other moments",
                         spread_);
}

bool CpuWatch::IsQuiet(absl::Duration duration) {
  const CpuTimes before = CpuTimesNow();
  absl::SleepFor(duration);
  return DisturbanceBetween(before, CpuTimesNow()).empty();
}

}  // namespace terrace
