// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_threads.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr absl::Duration kEndTimeout = absl::Seconds(2);  // for calls in flight at destruction

int64_t Call(int file, const BlockRequest& request) {
  const auto bytes = static_cast<size_t>(request.bytes);
  const ssize_t moved = request.direction == NvmeDirection::kWrite
                            ? ::pwrite(file, request.memory, bytes, request.offset)
                            : ::pread(file, request.memory, bytes, request.offset);
  return moved < 0 ? -errno : moved;
}

}  // namespace

// `todo` and `done` keep their memory: nothing is allocated once as many requests were in flight as
// ever will be.
struct ThreadIo::Shared {
  std::vector<int> files;
  absl::Mutex mutex;
  std::vector<BlockRequest> todo ABSL_GUARDED_BY(mutex);  // oldest first
  std::vector<BlockResult> done ABSL_GUARDED_BY(mutex);
  int running ABSL_GUARDED_BY(mutex) = 0;
  bool stopping ABSL_GUARDED_BY(mutex) = false;

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return stopping || !todo.empty(); }
  bool HasResults() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !done.empty(); }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return running == 0; }

  void Run() {
    const absl::MutexLock lock(&mutex);
    while (true) {
      mutex.Await(absl::Condition(this, &Shared::HasWork));
      if (stopping) return;
      const BlockRequest request = todo.front();
      todo.erase(todo.begin());
      ++running;
      mutex.Unlock();
      const int64_t result = Call(files[static_cast<size_t>(request.file)], request);
      mutex.Lock();
      --running;
      done.push_back({.slot = request.slot, .result = result});
    }
  }
};

ThreadIo::ThreadIo(std::span<const int> files, int depth, std::string_view why)
    : why_(why), shared_(std::make_shared<Shared>()) {
  shared_->files.assign(files.begin(), files.end());
  {
    const absl::MutexLock lock(&shared_->mutex);
    shared_->todo.reserve(static_cast<size_t>(depth));
    shared_->done.reserve(static_cast<size_t>(depth));
  }
  try {
    for (int i = 0; i < depth; ++i) threads_.emplace_back([shared = shared_] { shared->Run(); });
  } catch (const std::system_error&) {  // the limit of threads is reached
  }
}

absl::StatusOr<std::unique_ptr<BlockIo>> ThreadIo::Create(std::span<const int> files, int depth,
                                                          std::string_view why) {
  std::unique_ptr<ThreadIo> io(new ThreadIo(files, depth, why));
  if (io->threads_.empty()) {
    return absl::ResourceExhaustedError(
        "nvme.engine: threads: the system gives no thread for requests; raise ulimit -u or the "
        "container's limit of pids");
  }
  return std::unique_ptr<BlockIo>(std::move(io));
}

ThreadIo::~ThreadIo() {
  bool idle = false;
  {
    const absl::MutexLock lock(&shared_->mutex);
    shared_->stopping = true;
    idle =
        shared_->mutex.AwaitWithTimeout(absl::Condition(shared_.get(), &Shared::Idle), kEndTimeout);
  }
  for (std::thread& thread : threads_) {
    if (idle) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

int ThreadIo::Start(const BlockRequest& request) {
  const absl::MutexLock lock(&shared_->mutex);
  shared_->todo.push_back(request);
  return 0;
}

int ThreadIo::Reap(std::span<BlockResult> results, absl::Duration timeout) {
  const absl::MutexLock lock(&shared_->mutex);
  shared_->mutex.AwaitWithTimeout(absl::Condition(shared_.get(), &Shared::HasResults), timeout);
  std::vector<BlockResult>& done = shared_->done;
  const size_t count = std::min(done.size(), results.size());
  std::copy_n(done.begin(), count, results.begin());
  done.erase(done.begin(), done.begin() + static_cast<ptrdiff_t>(count));
  return static_cast<int>(count);
}

std::string ThreadIo::description() const {
  return absl::StrCat(threads_.size(), " threads with pread and pwrite", why_.empty() ? "" : ": ",
                      Absl(why_));
}

std::string ThreadIo::slower_because() const {
  if (why_.empty()) return "";
  return absl::StrCat(why_, ", so that threads take over; let it allow io_uring (sysctl ",
                      "kernel.io_uring_disabled=0, the container's seccomp profile)");
}

}  // namespace terrace
