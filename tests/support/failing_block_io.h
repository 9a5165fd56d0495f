// An engine of the NVMe tier that misbehaves as a plan says: requests fail, come back short, late
// or never. Requests are counted over all engines that share the plan, repeats included.
// Thread rule: the plan is thread-safe, the engine is used by one thread like any other.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/memory/nvme/nvme_io.h"

namespace terrace {

struct BlockFault {
  enum Kind { kFail, kRefuse, kShorten, kDelay, kLose };
  Kind kind = kFail;
  int64_t first = 0;  // request, counted from 0
  int64_t count = 1;  // of requests from there
  int64_t every = 1;  // of them, each `every`-th
  int error = 0;      // kFail: of the result; kRefuse: of Start
  int64_t bytes = 0;  // kShorten: what is reported, if more were asked for
  absl::Duration delay;
};

// Thread-safe.
class BlockFaultPlan {
 public:
  void Add(const BlockFault& fault) {
    const absl::MutexLock lock(&mutex_);
    faults_.push_back(fault);
  }
  std::optional<BlockFault> Next() {
    const absl::MutexLock lock(&mutex_);
    const int64_t request = requests_++;
    for (const BlockFault& fault : faults_) {
      const int64_t i = request - fault.first;
      if (i >= 0 && i < fault.count && i % fault.every == 0) return fault;
    }
    return std::nullopt;
  }
  int64_t requests() {
    const absl::MutexLock lock(&mutex_);
    return requests_;
  }
  // For NvmeOptions::wrap; the plan must outlive the file.
  BlockIoWrapper Wrapper();

 private:
  absl::Mutex mutex_;
  std::vector<BlockFault> faults_ ABSL_GUARDED_BY(mutex_);
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-compatible.
class FailingBlockIo final : public BlockIo {
 public:
  FailingBlockIo(BlockFaultPlan* plan, std::unique_ptr<BlockIo> io)
      : plan_(plan), io_(std::move(io)) {}

  void RegisterMemory(std::span<std::byte> memory) override { io_->RegisterMemory(memory); }
  int Start(const BlockRequest& request) override {
    const std::optional<BlockFault> fault = plan_->Next();
    if (!fault) return io_->Start(request);
    switch (fault->kind) {
      case BlockFault::kFail:
        ready_.push_back({.slot = request.slot, .result = -fault->error});
        return 0;
      case BlockFault::kRefuse:
        return -fault->error;
      case BlockFault::kShorten:
        return StartShort(request, fault->bytes);
      case BlockFault::kDelay:
        late_.push_back({Clock::now() + absl::ToChronoNanoseconds(fault->delay), request});
        return 0;
      case BlockFault::kLose:
        return 0;
    }
    return 0;
  }
  int Reap(std::span<BlockResult> results, absl::Duration timeout) override {
    for (size_t i = 0; i < late_.size();) {
      const auto left = absl::FromChrono(late_[i].first - Clock::now());
      if (left > absl::ZeroDuration()) {
        timeout = std::min(timeout, left);  // the caller watches the clock and comes again
        ++i;
        continue;
      }
      if (const int error = io_->Start(late_[i].second); error != 0) return error;
      late_.erase(late_.begin() + static_cast<ptrdiff_t>(i));
    }
    if (!ready_.empty()) {
      results[0] = ready_.back();
      ready_.pop_back();
      return 1;
    }
    const int count = io_->Reap(results, timeout);
    for (int i = 0; i < count; ++i) Shorten(results[static_cast<size_t>(i)]);
    return count;
  }
  std::string description() const override { return io_->description() + ", failing"; }

 private:
  using Clock = std::chrono::steady_clock;

  // Moves the whole pages of `bytes` only, and reports `bytes`.
  int StartShort(BlockRequest request, int64_t bytes) {
    const int64_t pages = bytes / 4096 * 4096;
    if (bytes >= request.bytes) return io_->Start(request);
    if (pages == 0) {
      ready_.push_back({.slot = request.slot, .result = bytes});
      return 0;
    }
    request.bytes = pages;
    short_.push_back({.slot = request.slot, .result = bytes});
    return io_->Start(request);
  }
  void Shorten(BlockResult& result) {
    const auto found = std::find_if(short_.begin(), short_.end(), [&](const BlockResult& other) {
      return other.slot == result.slot;
    });
    if (found == short_.end()) return;
    if (result.result >= 0) result = *found;
    short_.erase(found);
  }

  BlockFaultPlan* const plan_;
  const std::unique_ptr<BlockIo> io_;
  std::vector<BlockResult> ready_;
  std::vector<BlockResult> short_;
  std::vector<std::pair<Clock::time_point, BlockRequest>> late_;
};

inline BlockIoWrapper BlockFaultPlan::Wrapper() {
  return [this](std::unique_ptr<BlockIo> io) {
    return std::make_unique<FailingBlockIo>(this, std::move(io));
  };
}

}  // namespace terrace
