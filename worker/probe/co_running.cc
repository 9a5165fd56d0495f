// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/co_running.h"

#include <utility>

#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<CoRunningRanks>> CoRunningRanks::Create(int count, int threads) {
  std::vector<KernelRunner> runners;
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(KernelRunner runner, KernelRunner::Create(threads));
    runners.push_back(std::move(runner));
  }
  return std::unique_ptr<CoRunningRanks>(new CoRunningRanks(std::move(runners)));
}

CoRunningRanks::CoRunningRanks(std::vector<KernelRunner> runners) : runners_(std::move(runners)) {
  for (KernelRunner& runner : runners_) {
    threads_.emplace_back([this, &runner] { Run(&runner); });
  }
}

CoRunningRanks::~CoRunningRanks() {
  ending_ = true;
  Do(nullptr);
}

void CoRunningRanks::Do(const ProbeCase* one, int64_t window_bytes) {
  const int all = static_cast<int>(runners_.size());
  followed_.store(0);
  // Read by the threads only after the round that they follow.
  case_ = one;
  window_bytes_ = window_bytes;
  round_.fetch_add(1);
  round_.notify_all();
  for (int done = followed_.load(); done < all; done = followed_.load()) followed_.wait(done);
}

void CoRunningRanks::Run(KernelRunner* runner) {
  for (int seen = 0;;) {
    round_.wait(seen);
    seen = round_.load();
    const ProbeCase* const one = case_;
    const bool ending = ending_;
    runner->SetWindow(window_bytes_);
    // From here on the fields above are those of the next round.
    followed_.fetch_add(1);
    followed_.notify_all();
    if (ending) return;
    while (one != nullptr && round_.load(std::memory_order_relaxed) == seen) runner->Call(*one);
  }
}

}  // namespace terrace
