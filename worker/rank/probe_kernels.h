// Times kernels on this machine: what plans compute with instead of peak rates.
//
// Each case runs on memory that other work has pushed out of the caches, as in a training step, and
// counts with the call that a quarter of all calls are faster than: neither what the machine could
// do at best, nor what others on it left over.
//
// Used on one thread; kernels use `threads`.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/v1/hardware.pb.h"
#include "worker/memory/arena.h"
#include "worker/rank/probe_cases.h"

namespace terrace {

// Called with the share of the work that is done, 0 to 1.
using ProbeProgress = std::function<void(double done)>;

// Used on one thread.
class KernelProbe {
 public:
  // RESOURCE_EXHAUSTED when the system refuses the memory; INTERNAL when kernels cannot be
  // prepared.
  static absl::StatusOr<KernelProbe> Create(int threads);

  // Seconds of one call. 0 when the case needs more memory than the probe has.
  double Seconds(const ProbeCase& one, double budget_seconds);

  // Adds the rates of all cases of that depth, and the profile's figures for those who know no
  // tables.
  void Measure(ProbeDepth depth, const ProbeProgress& progress, v1::HardwareProfile* profile);

 private:
  KernelProbe(Arena arena, int threads) : arena_(std::move(arena)), threads_(threads) {}
  // Round the arena, so that what was used long ago is used next.
  std::byte* Take(int64_t bytes);
  std::vector<kernels::TensorView> Operands(const ProbeCase& one);
  double Call(const ProbeCase& one);

  Arena arena_;
  int64_t used_ = 0;
  int threads_;
  SystemClock clock_;
};

}  // namespace terrace
