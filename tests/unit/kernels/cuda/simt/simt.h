// Executes CUDA kernels on the host, so that their indices, tails, barriers and arithmetic are
// tested where there is no GPU. The threads of a block are fibers that run in turns, each until it
// waits at a barrier of its block or warp; blocks run one after another.
//
// The order of turns can be chosen: a kernel whose result depends on it has a race. A barrier that
// some threads never reach ends the process with a message. What is not shown: speed, and what
// real hardware does between barriers at once. Thread rule: used by one thread only.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the running thread and launch.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace terrace::simt {

enum class Order { kForward, kBackward, kShuffled };

// For all launches from now on.
void SetOrder(Order order);

// Runs `thread` once for each thread of the grid. `shared_bytes` of dynamic shared memory, poisoned
// for each block.
void Run(const dim3& grid, const dim3& block, size_t shared_bytes,
         const std::function<void()>& thread);

unsigned char* DynamicShared();

// The threads' barriers.
void SyncBlock();
void SyncWarp();

// What the 32 lanes of the warp bring, `bytes` each, as one array; valid until the lane's next
// exchange.
inline constexpr size_t kExchangeBytes = 64;
const unsigned char* Exchange(const void* mine, size_t bytes);

template <typename T>
T FromLane(const T& mine, unsigned lane) {
  static_assert(sizeof(T) <= kExchangeBytes);
  const unsigned char* all = Exchange(&mine, sizeof(T));
  T other;
  std::memcpy(&other, all + (lane % 32) * kExchangeBytes, sizeof(T));
  return other;
}

// Copies of 16 bytes (or zeros) that are on their way until the thread waits for all of its own: at
// once in one order of threads, as late as can be in the others.
void StartCopy(void* to, const void* from, bool exists);
void FinishCopies();

// Four matrices of 8 x 8 elements of two bytes, of each of which eight lanes name the rows.
void LoadMatrices(const void* row, bool transposed, uint32_t* out);

// The matrix instruction of kernels/cuda/warp.cuh, from the 32 lanes' fragments: products of bf16,
// or of f16, summed in f32 in order of k.
void MultiplyFragments(const uint32_t* a, const uint32_t* b, float* c, bool f16 = false);

inline unsigned Lane() { return threadIdx.x % 32; }

}  // namespace terrace::simt
