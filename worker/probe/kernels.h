// Times kernels on this machine: what plans compute with instead of peak rates.
//
// Each case runs on memory that other work has pushed out of the caches, as in a training step, and
// where it is small enough also on memory that has stayed in the rank's part of the last cache;
// while as many ranks as have room on the machine do the same (co_running.h). All cases take
// turns several times over the whole probe; of a case the mean over its turns counts, of a turn the
// median of its few calls: a step takes calls as they come, in the machine's fast moments and in
// its slow ones.
//
// Used on one thread; kernels use `threads`.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/hardware.pb.h"
#include "worker/probe/cases.h"
#include "worker/probe/co_running.h"
#include "worker/probe/runner.h"

namespace terrace {

// Called with the share of the work that is done, 0 to 1.
using ProbeProgress = std::function<void(double done)>;

// Used on one thread.
class KernelProbe {
 public:
  // `ranks`: with `threads` each, on the machine together. RESOURCE_EXHAUSTED when the system
  // refuses the memory; INTERNAL when kernels cannot be prepared.
  static absl::StatusOr<KernelProbe> Create(int threads, int ranks);
  // Of the rank's part of the last-level caches; 0: nothing is measured in them.
  int64_t cache_bytes() const { return cache_bytes_; }

  // Seconds of one call, of many turns. 0 when the case needs more memory than the probe has.
  double SteadySeconds(const ProbeCase& one);

  // Of the turns of the last Measure (SpreadOf).
  double spread() const { return spread_; }
  // Why the last Measure made fewer turns than its depth asks for; empty: it made all.
  const std::string& cut_short() const { return cut_short_; }

  // Adds the rates of all cases of that depth, and the profile's figures for those who know no
  // tables.
  void Measure(ProbeDepth depth, const ProbeProgress& progress, v1::HardwareProfile* profile);

 private:
  KernelProbe(KernelRunner runner, std::unique_ptr<CoRunningRanks> co_running, int64_t cache_bytes)
      : runner_(std::move(runner)), co_running_(std::move(co_running)), cache_bytes_(cache_bytes) {}
  // Seconds of one call: the median of a few in a row. REQUIRES: the case fits.
  double Turn(const ProbeCase& one);
  // The same in the cache; 0 when it has no room.
  double CachedTurn(const ProbeCase& one);
  double Calls(const ProbeCase& one);

  KernelRunner runner_;
  std::unique_ptr<CoRunningRanks> co_running_;
  int64_t cache_bytes_;
  double spread_ = 1;
  std::string cut_short_;
};

}  // namespace terrace
