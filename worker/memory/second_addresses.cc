// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/second_addresses.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif

namespace terrace {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;

// Sorted, neither overlapping nor touching.
std::vector<PageRun> Union(std::vector<PageRun> runs) {
  std::sort(runs.begin(), runs.end(),
            [](const PageRun& a, const PageRun& b) { return a.page < b.page; });
  std::vector<PageRun> merged;
  for (const PageRun& run : runs) {
    if (merged.empty() || merged.back().page + merged.back().pages < run.page) {
      merged.push_back(run);
      continue;
    }
    PageRun& last = merged.back();
    last.pages = std::max(last.pages, run.page + run.pages - last.page);
  }
  return merged;
}

// In pages of the system's largest that transparent memory has, as far as the arena goes: of memory
// that is partly its own and partly the file's, none could be in one.
std::vector<PageRun> Widened(const ArenaExtent& extent) {
  std::vector<PageRun> runs;
  for (const PageRun& run : extent.runs) {
    const int64_t begin = run.page * extent.page_bytes / kHugePageBytes * kHugePageBytes;
    const int64_t end = (run.page + run.pages) * extent.page_bytes;
    const int64_t blocks = (end - begin + kHugePageBytes - 1) / kHugePageBytes;
    const int64_t bytes = std::min(blocks * kHugePageBytes, extent.bytes - begin);
    runs.push_back({begin / extent.page_bytes, bytes / extent.page_bytes});
  }
  return Union(std::move(runs));
}

absl::Status Refused(const char* what, int64_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the system refuses ", what, " of ", bytes,
                   " bytes of the device arena: ", std::strerror(error),
                   "; look at the memory that is left, at ulimit -f and at vm.max_map_count, or "
                   "set layout.packing: contiguous"));
}

// A wish, like huge pages for the rest of the arena: shared memory gets none by itself unless
// shmem_enabled says so. Second addresses of parts of them leave them whole.
void Collapse(const PageRun& run, int64_t page_bytes, std::byte* at) {
  const int64_t bytes = run.pages * page_bytes / kHugePageBytes * kHugePageBytes;
  for (int64_t i = 0; i < bytes; i += kHugePageBytes)
    ::madvise(at + i, kHugePageBytes, MADV_COLLAPSE);
}

absl::Status Map(int file, const PageRun& run, int64_t page_bytes, std::byte* at) {
  const int64_t bytes = run.pages * page_bytes;
  if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file,
             run.page * page_bytes) != MAP_FAILED) {
    return absl::OkStatus();
  }
  return Refused("a mapping", bytes, errno);
}

}  // namespace

int64_t ArenaExtent::second_bytes() const {
  int64_t pages = 0;
  for (const PageRun& run : runs) pages += run.pages;
  return pages * page_bytes;
}

absl::Status MapSecondAddresses(int file, std::byte* data, const ArenaExtent& extent) {
  if (extent.runs.empty()) return absl::OkStatus();
  const int64_t page = extent.page_bytes;
  if (::ftruncate(file, extent.bytes) != 0) return Refused("a file", extent.bytes, errno);
  for (const PageRun& run : Widened(extent)) {
    // The memory comes here, where it can be said that there is none.
    int error;
    do {
      error = ::posix_fallocate(file, run.page * page, run.pages * page);
    } while (error == EINTR);
    if (error != 0) return Refused("memory", run.pages * page, error);
    std::byte* const at = data + run.page * page;
    if (absl::Status status = Map(file, run, page, at); !status.ok()) return status;
    Collapse(run, page, at);
  }
  std::byte* at = data + extent.bytes;
  for (const PageRun& run : extent.runs) {
    if (absl::Status status = Map(file, run, page, at); !status.ok()) return status;
    at += run.pages * page;
  }
  return absl::OkStatus();
}

}  // namespace terrace
