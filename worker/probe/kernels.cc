// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/kernels.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "worker/probe/rates.h"

namespace terrace {
namespace {

constexpr int64_t kStreamElements = 8 << 20;
constexpr int kCallsMax = 16;            // of one turn
constexpr double kTurnSeconds = 1.5e-3;  // of one turn of one case, if calls are that short
constexpr int kBriefTurns = 3, kThoroughTurns = 8;
// On a quiet machine all turns take a third of it. Beside much other work each change of the case
// waits for processors, and one turn has to do.
constexpr double kBriefSeconds = 8, kThoroughSeconds = 45;
constexpr int kSteadyTurns = 30;      // of a figure that stands for many
constexpr double kSteadySeconds = 3;  // a tenth of a second on a quiet machine
constexpr int kSteadyTurnsMin = 3;

class Stopwatch {
 public:
  double Seconds() const { return static_cast<double>(clock_.MonotonicNanos() - start_ns_) * 1e-9; }

 private:
  SystemClock clock_;
  int64_t start_ns_ = clock_.MonotonicNanos();
};

double Median(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

absl::StatusOr<KernelProbe> KernelProbe::Create(int threads, int ranks) {
  if (const kernels::Status prepared = kernels::cpu::Prepare(threads); !prepared.ok()) {
    return absl::InternalError(prepared.message);
  }
  ASSIGN_OR_RETURN(KernelRunner runner, KernelRunner::Create(threads));
  ASSIGN_OR_RETURN(auto co_running, CoRunningRanks::Create(ranks - 1, threads));
  return KernelProbe(std::move(runner), std::move(co_running), LastLevelCacheBytes() / ranks);
}

double KernelProbe::Turn(const ProbeCase& one) {
  runner_.SetWindow(0);
  co_running_->Do(&one);
  const double seconds = Calls(one);
  co_running_->Do(nullptr);
  return seconds;
}

double KernelProbe::CachedTurn(const ProbeCase& one) {
  const int64_t window_bytes = runner_.WindowInCache(one, cache_bytes_);
  if (window_bytes == 0) return 0;
  runner_.SetWindow(window_bytes);
  co_running_->Do(&one, window_bytes);
  for (int64_t i = runner_.RoundOf(one, window_bytes); i > 0; --i) runner_.Call(one);
  const double seconds = Calls(one);
  co_running_->Do(nullptr);
  return seconds;
}

double KernelProbe::Calls(const ProbeCase& one) {
  std::vector<double> seconds = {runner_.Call(one)};
  if (seconds[0] < kTurnSeconds) {  // a long call needs no warming up
    seconds.clear();
    double sum = 0;
    while (sum < kTurnSeconds && seconds.size() < kCallsMax) {
      seconds.push_back(runner_.Call(one));
      sum += seconds.back();
    }
  }
  return Median(std::move(seconds));
}

double KernelProbe::SteadySeconds(const ProbeCase& one) {
  if (!runner_.Fits(one)) return 0;
  std::vector<double> turns;
  const Stopwatch watch;
  while (turns.size() < kSteadyTurns &&
         (turns.size() < kSteadyTurnsMin || watch.Seconds() < kSteadySeconds)) {
    turns.push_back(Turn(one));
  }
  return MeanWithoutExtremes(std::move(turns));
}

void KernelProbe::Measure(ProbeDepth depth, const ProbeProgress& progress,
                          v1::HardwareProfile* profile) {
  const std::vector<ProbeCase> cases = ProbeCases(depth);
  const int count = depth == ProbeDepth::kBrief ? kBriefTurns : kThoroughTurns;
  std::vector<std::vector<double>> turns(cases.size()), cached(cases.size());
  const double limit = depth == ProbeDepth::kBrief ? kBriefSeconds : kThoroughSeconds;
  const Stopwatch watch;
  int turn = 0;
  for (; turn < count && (turn == 0 || watch.Seconds() < limit); ++turn) {
    for (size_t i = 0; i < cases.size(); ++i) {
      progress((turn + static_cast<double>(i) / static_cast<double>(cases.size())) / count);
      if (!runner_.Fits(cases[i])) continue;
      turns[i].push_back(Turn(cases[i]));
      if (const double seconds = CachedTurn(cases[i]); seconds > 0) cached[i].push_back(seconds);
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    AddRate(cases[i], MeanWithoutExtremes(turns[i]), profile);
    AddCachedRate(cases[i], MeanWithoutExtremes(cached[i]), profile);
  }
  spread_ = SpreadOf(turns);
  cut_short_.clear();
  if (turn < count) {
    cut_short_ = absl::StrCat("other work left time to measure each kernel ", turn,
                              " times instead of ", count);
  }
  profile->set_cache_bytes(cache_bytes_);
  const ProbeCase stream = StreamCase(kStreamElements);
  SetMemoryRate(stream, SteadySeconds(stream), profile);
}

}  // namespace terrace
