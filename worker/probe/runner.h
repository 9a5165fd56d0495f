// Calls kernels for a probe: on memory that other work has pushed out of the caches, as in the
// steps of large models, or on memory that has stayed in the last of them, as in those of small
// ones.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/memory/arena.h"
#include "worker/probe/cases.h"

namespace terrace {

// Thread-compatible; its kernels use `threads`.
class KernelRunner {
 public:
  // RESOURCE_EXHAUSTED when the system refuses the memory.
  static absl::StatusOr<KernelRunner> Create(int threads);

  // Two sets of operands fit, so that none is found where the last call left it.
  bool Fits(const ProbeCase& one) const;
  // Memory of several sets of operands that calls may go round and find in a last-level cache of so
  // many bytes, but not all in the cores' own; 0: a set is too large for that. REQUIRES: Fits(one).
  int64_t WindowInCache(const ProbeCase& one, int64_t cache_bytes) const;
  // Calls in which each set of a window is used once. REQUIRES: window_bytes > 0.
  int64_t RoundOf(const ProbeCase& one, int64_t window_bytes) const;
  // What calls go round from now on; 0: all of the memory, from where they last were in it, as the
  // window behind them is in the cache.
  void SetWindow(int64_t window_bytes);
  // Where the next operand lies, from the beginning of the memory on.
  int64_t position() const { return window_ > 0 ? window_used_ : used_; }
  // Seconds of one call; 0 when the kernel refuses it. REQUIRES: Fits(one).
  double Call(const ProbeCase& one);

 private:
  KernelRunner(Arena arena, int threads) : arena_(std::move(arena)), threads_(threads) {}
  int64_t SetBytes(const ProbeCase& one) const;
  // Round the window, so that what was used long ago is used next.
  std::byte* Take(int64_t bytes);
  std::vector<kernels::TensorView> Operands(const ProbeCase& one);

  Arena arena_;
  int64_t used_ = 0;
  int64_t window_ = 0;  // 0: the arena
  int64_t window_used_ = 0;
  int threads_;
  SystemClock clock_;
};

}  // namespace terrace
