// Counts the process's C++ allocations, on whatever thread.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/worker/memory/nvme/nvme_fixture.h"

namespace {

std::atomic<int64_t> allocations = 0;

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace terrace {
namespace {

using NvmeAllocationTest = NvmeFixture;

TEST_F(NvmeAllocationTest, NothingIsAllocatedAfterTheFirstUse) {
  for (const char* engine : {"io_uring", "threads"}) {
    NvmeOptions options = Options(4 << 20, 2);
    options.engine = engine;
    options.block_bytes = 65536;
    options.verify = true;
    const auto file = MakeNvmeFile(std::move(options));
    ASSERT_NE(file, nullptr);
    const auto queue = MakeNvmeQueue(*file);
    Arena memory = MakeNvmeMemory(4 << 20);
    const NvmePiece piece = {.memory = memory.data(), .bytes = 4 << 20};
    const auto both = [&] {
      return queue->Transfer(NvmeDirection::kWrite, {&piece, 1}).ok() &&
             queue->Transfer(NvmeDirection::kRead, {&piece, 1}).ok();
    };
    ASSERT_TRUE(both());
    const int64_t before = allocations;
    EXPECT_TRUE(both() && both());
    EXPECT_EQ(allocations - before, 0) << engine;
  }
}

}  // namespace
}  // namespace terrace
