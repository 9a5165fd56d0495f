// What the other ranks of a machine do while a probe measures one of them: the same. Ranks that
// share a machine share its memory, its caches and often the arithmetic of its cores, so one alone
// is faster than each of several.
//
// Owns a thread and memory for each. Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/probe/cases.h"
#include "worker/probe/runner.h"

namespace terrace {

// Used on one thread.
class CoRunningRanks {
 public:
  // `count` of them, each with `threads`; 0 is none. RESOURCE_EXHAUSTED when the system refuses
  // their memory.
  static absl::StatusOr<std::unique_ptr<CoRunningRanks>> Create(int count, int threads);
  ~CoRunningRanks();
  CoRunningRanks(const CoRunningRanks&) = delete;
  CoRunningRanks& operator=(const CoRunningRanks&) = delete;

  // Each calls the case again and again from now on, round so much of its memory (KernelRunner),
  // or, with null, rests. Returns when all have left what they did before. `one` must outlive the
  // next call.
  void Do(const ProbeCase* one, int64_t window_bytes = 0);

 private:
  explicit CoRunningRanks(std::vector<KernelRunner> runners);
  void Run(KernelRunner* runner);

  std::vector<KernelRunner> runners_;
  // Of a round: written before round_, read before followed_.
  const ProbeCase* case_ = nullptr;
  int64_t window_bytes_ = 0;
  bool ending_ = false;
  std::atomic<int> round_{0};
  std::atomic<int> followed_{0};  // of this round
  std::vector<std::jthread> threads_;
};

}  // namespace terrace
