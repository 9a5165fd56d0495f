// Who else uses the processors that a probe may run on: other processes, and the hypervisor that
// gives them to other machines.
//
// Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/probe/kept.h"

namespace terrace {

// Seconds since some moment, summed over the processors.
struct CpuTimes {
  double all = 0;     // that passed
  double busy = 0;    // in which one worked for somebody
  double stolen = 0;  // in which one was another virtual machine's
  double own = 0;     // of this process
};

// Of the lines "cpu<n> ..." of /proc/stat (proc(5)) with `is_ours(n)`. `ticks_per_second`: of its
// unit. Own times stay 0.
CpuTimes ParseCpuTimes(std::string_view stat, double ticks_per_second,
                       const std::function<bool(int)>& is_ours);
// Of the processors that this process may use, and its own. Zeros where /proc is not there.
CpuTimes CpuTimesNow();

// What others took between two looks, in words; empty: too little to matter, or nobody knows.
std::string DisturbanceBetween(const CpuTimes& before, const CpuTimes& after);

class CpuWatch final : public ProbeWatch {
 public:
  void Begin() override { before_ = CpuTimesNow(); }
  // How far the same calls lay apart (SpreadOf): others may be where nobody counts them.
  void SetSpread(double spread) { spread_ = spread; }
  // Why the measurement is less than it should be; empty: it is whole.
  void SetCutShort(std::string why) { cut_short_ = std::move(why); }
  std::string End() override;
  // Looks for `duration`: false while others work.
  static bool IsQuiet(absl::Duration duration);

 private:
  CpuTimes before_;
  double spread_ = 1;
  std::string cut_short_;
};

}  // namespace terrace
