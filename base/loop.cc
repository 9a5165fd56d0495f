// SPDX-License-Identifier: Apache-2.0
#include "base/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/synchronization/notification.h"

namespace terrace {

void Loop::Start(absl::Duration first, std::function<absl::Duration()> after_batch) {
  wait_ = first;
  after_batch_ = std::move(after_batch);
  thread_ = std::thread([this] { Run(); });
}

void Loop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Loop::Post(std::function<void()> closure) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) queue_.push_back(std::move(closure));
}

bool Loop::Call(const std::function<void()>& closure) {
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    queue_.push_back([&] {
      closure();
      done.Notify();
    });
  }
  done.WaitForNotification();
  return true;
}

void Loop::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !queue_.empty();
  };
  auto last_after = std::chrono::steady_clock::now();
  const auto until_due = [&] {
    const auto since = absl::FromChrono(std::chrono::steady_clock::now() - last_after);
    return std::max(absl::ZeroDuration(), wait_ - since);
  };
  while (true) {
    std::vector<std::function<void()>> batch;
    bool last = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&has_work), until_due());
      batch.swap(queue_);
      last = stopping_;
    }
    for (const std::function<void()>& closure : batch) closure();
    if (last) return;
    wait_ = after_batch_();
    last_after = std::chrono::steady_clock::now();
  }
}

}  // namespace terrace
