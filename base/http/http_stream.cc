// SPDX-License-Identifier: Apache-2.0
#include "base/http/http_stream.h"

#include <algorithm>
#include <utility>

namespace terrace {

bool HttpStream::Write(std::string_view part) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || ended_) return false;
  if (part.size() > kWaitingMax - waiting_.size()) {
    ended_ = broken_ = true;
  } else {
    waiting_.append(part);
  }
  Wake();
  return !ended_;
}

void HttpStream::End() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  Wake();
}

ssize_t HttpStream::Read(char* to, size_t size, const std::function<void()>& rest,
                         std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  if (broken_) return kBroken;
  if (!waiting_.empty()) {
    const size_t taken = std::min(size, waiting_.size());
    waiting_.copy(to, taken);
    waiting_.erase(0, taken);
    return static_cast<ssize_t>(taken);
  }
  if (ended_) return kEnd;
  rest();
  wake_ = std::move(wake);
  return 0;
}

void HttpStream::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  wake_ = nullptr;
}

void HttpStream::Wake() {
  if (const std::function<void()> wake = std::exchange(wake_, nullptr)) wake();
}

}  // namespace terrace
