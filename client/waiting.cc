// SPDX-License-Identifier: Apache-2.0
#include "client/waiting.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace terrace {
namespace {

constexpr int kSilentSeconds = 2;

}  // namespace

Waiting::Waiting(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { Run(); });
}

Waiting::~Waiting() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Waiting::Say(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Waiting::Run() {
  std::unique_lock lock(mutex_);
  int seconds = 0;
  while (!ended_.wait_for(lock, std::chrono::seconds(1), [this] { return done_; })) {
    if (++seconds < kSilentSeconds) continue;
    std::fprintf(stderr, "\r%s, %d s \033[K", what_.c_str(), seconds);
    std::fflush(stderr);
  }
  if (seconds >= kSilentSeconds) std::fprintf(stderr, "\r\033[K");
}

}  // namespace terrace
