// Calls kernels for a probe, on memory that other work has pushed out of the caches, as in a
// training step.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/memory/arena.h"
#include "worker/rank/probe_cases.h"

namespace terrace {

// Thread-compatible; its kernels use `threads`.
class KernelRunner {
 public:
  // RESOURCE_EXHAUSTED when the system refuses the memory.
  static absl::StatusOr<KernelRunner> Create(int threads);

  // Two sets of operands fit, so that none is found where the last call left it.
  bool Fits(const ProbeCase& one) const;
  // Seconds of one call; 0 when the kernel refuses it. REQUIRES: Fits(one).
  double Call(const ProbeCase& one);

 private:
  KernelRunner(Arena arena, int threads) : arena_(std::move(arena)), threads_(threads) {}
  // Round the arena, so that what was used long ago is used next.
  std::byte* Take(int64_t bytes);
  std::vector<kernels::TensorView> Operands(const ProbeCase& one);

  Arena arena_;
  int64_t used_ = 0;
  int threads_;
  SystemClock clock_;
};

}  // namespace terrace
