// Work that falls into parts that share nothing, done by as many threads as there are cores.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace terrace {

// Calls work(i) for each i below `count`, in any order and from several threads, and returns when
// all have ended.
template <typename Work>
void SideBySide(size_t count, const Work& work) {
  std::atomic<size_t> next = 0;
  const auto take = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) work(i);
  };
  std::vector<std::jthread> helpers;
  const size_t threads = std::min<size_t>(count, std::thread::hardware_concurrency());
  for (size_t t = 1; t < threads; ++t) helpers.emplace_back(take);
  take();
}

}  // namespace terrace
