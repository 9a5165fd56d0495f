// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/blocks.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reworded.h"
#include "base/strings.h"

namespace terrace {

std::span<std::byte> Block::For(int64_t offset, int64_t bytes) {
  if (data_ == nullptr) {
    data_.reset(static_cast<std::byte*>(
        ::operator new (bytes_ + kPageBytes, std::align_val_t{kPageBytes})));
  }
  return {data_.get() + offset % kPageBytes, static_cast<size_t>(bytes)};
}

int64_t WindowBytes(int threads) {
  const int64_t share = kBlockBytes / std::max(1, threads) / kPageBytes * kPageBytes;
  return std::max(share, kLeastWindowBytes);
}

absl::Status ForEachWindow(size_t count, int threads,
                           const std::function<absl::Status(size_t, Block*)>& work) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  size_t failed_at = count;
  absl::Status failure;
  const auto run = [&] {
    Block block(WindowBytes(threads));
    for (size_t i; !failed.load() && (i = next.fetch_add(1)) < count;) {
      absl::Status status = work(i, &block);
      if (status.ok()) continue;
      failed.store(true);
      const std::lock_guard lock(mutex);
      if (i < failed_at) {
        failed_at = i;
        failure = std::move(status);
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back(run);
    run();
  }  // the helpers are joined here, before what they use dies
  return failure;
}

absl::Status WithTensor(const absl::Status& status, std::string_view action,
                        std::string_view tensor) {
  if (status.ok()) return status;
  return Reworded(status, absl::StrCat("cannot ", Absl(action), " the state of ", Absl(tensor),
                                       ": ", status.message()));
}

}  // namespace terrace
