// What tests of communicators share: values that show who sent what, the sum as rings add it,
// members as threads, and a store in memory.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "worker/comm/communicator.h"

namespace terrace {

// Values that no two members, elements or orders of summing share.
inline std::vector<float> Values(int member, int64_t n) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = 1.0f / static_cast<float>(3 * i + 7 * member + 1);
  return values;
}

// The sum of element i as the ring adds it: part p begins with member p + 1.
inline std::vector<float> RingSum(int size, int64_t n) {
  std::vector<std::vector<float>> all;
  for (int member = 0; member < size; ++member) all.push_back(Values(member, n));
  const int64_t part = (n + size - 1) / size;
  std::vector<float> sum(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t p = i / part;
    sum[i] = all[(p + 1) % size][i];
    for (int64_t k = 2; k <= size; ++k) sum[i] += all[(p + k) % size][i];
  }
  return sum;
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Thread-safe.
class MapRendezvous final : public RendezvousStore {
 public:
  absl::Status Set(const std::string& key, const std::vector<char>& value) override {
    absl::MutexLock lock(&mutex_);
    values_[key] = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::vector<char>>> Wait(const std::vector<std::string>& keys,
                                                      int64_t timeout_ms) override {
    const absl::Time deadline = absl::Now() + absl::Milliseconds(timeout_ms);
    absl::MutexLock lock(&mutex_);
    std::vector<std::vector<char>> found;
    for (const std::string& key : keys) {
      const auto there = [&] { return values_.contains(key); };
      if (!mutex_.AwaitWithDeadline(absl::Condition(&there), deadline))
        return absl::DeadlineExceededError("key " + key + " is missing");
      found.push_back(values_[key]);
    }
    return found;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::vector<char>> values_;
};

using Join = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(int rank)>;

// Runs `body` on one thread a member, in the group that `join` gives it.
inline void OnMembers(int size, const Join& join, const std::function<void(Communicator*)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = join(rank);
      ASSERT_TRUE(group.ok()) << group.status();
      body(group->get());
    });
  }
}

}  // namespace terrace
