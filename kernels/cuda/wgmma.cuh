// Matrix products of a warpgroup on sm_90a: 64 rows of A times columns of B out of shared memory,
// started and waited for (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
//
// bf16 or f16 into f32. Warp w of the warpgroup has rows 16 w to 16 w + 15 of A and of the sums,
// its lanes as in fragments of m16n8k16 (warp.cuh). B, and A where it is in shared memory, are
// named by a descriptor: where the matrix begins and how its groups of eight rows lie. Between
// StartX and the wait for its group nobody may touch sums or registers of A, nor write what is
// read; before the first product behind a wait stands FenceProducts. All threads of the warpgroup
// call all of it. Tests bring their own (tests/unit/kernels/cuda/simt/hopper.h). Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/warp.cuh"

namespace terrace::kernels::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kProductRows = 64;
inline constexpr int kProductDepth = 16;  // of k

// Rows of kRowBytes (64 or 128) one after another, swizzled over as many bytes, from a place on
// where the pattern of eight rows begins (and up to kRowBytes - 32 bytes further: the k columns
// that follow). `leading_bytes`: to the next such matrix on the right, for a B whose rows are k;
// kNoLeading where k lies along the rows.
inline constexpr uint32_t kNoLeading = 16;  // what the manual assumes: one unit
template <int kRowBytes>
__device__ inline uint64_t DescribeMatrix(uint32_t shared_address, uint32_t leading_bytes) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  constexpr uint64_t kEightRows = 8 * kRowBytes / 16;
  return uint64_t{(shared_address & 0x3ffff) >> 4} | uint64_t{leading_bytes >> 4} << 16 |
         kEightRows << 32 | kSwizzle << 62;
}

__device__ inline void FenceProducts() {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  simt::FenceProducts();
#endif
}

// Closes a group of the products started since the last.
__device__ inline void CommitProducts() {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  simt::CommitProducts();
#endif
}

// Until at most kGroups groups, the last ones, are on their way.
template <int kGroups>
__device__ inline void WaitForProducts() {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
#else
  simt::WaitForProducts(kGroups);
#endif
}

// Tells the compiler, which knows nothing of products on their way, that sums are read and written
// here: it neither moves nor keeps copies of them across. Around what is started and waited for.
template <int kTiles>
__device__ inline void HoldSums([[maybe_unused]] float (*sums)[4]) {
#ifdef __CUDACC__
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[n][e])::"memory");
  }
#endif
}

// The same for registers of A that products on their way read: behind the wait.
template <int kSteps>
__device__ inline void HoldWeights([[maybe_unused]] uint32_t (*weights)[4]) {
#ifdef __CUDACC__
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(weights[k][e])::"memory");
  }
#endif
}

#ifdef __CUDACC__
// The sums as operands of the instruction, and their names in its text.
#define TERRACE_TILE(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
#define TERRACE_TILES_4(n) \
  TERRACE_TILE(n), TERRACE_TILE(n + 1), TERRACE_TILE(n + 2), TERRACE_TILE(n + 3)
#define TERRACE_TILES_8 TERRACE_TILES_4(0), TERRACE_TILES_4(4)
#define TERRACE_TILES_12 TERRACE_TILES_8, TERRACE_TILES_4(8)
#define TERRACE_TILES_16 TERRACE_TILES_12, TERRACE_TILES_4(12)
#define TERRACE_SUMS_32                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TERRACE_SUMS_48                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TERRACE_SUMS_64                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// The type of A and B, descriptors, adds (a predicate), signs, whether either is transposed.
#define TERRACE_SHARED_64(type)                                                        \
  asm volatile(                                                                        \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"                               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" TERRACE_SUMS_32 \
      "}, %32, %33, adds, 1, 1, 0, 0;\n}"                                              \
      : TERRACE_TILES_8                                                                \
      : "l"(a), "l"(b), "r"(adds))
#define TERRACE_SHARED_128(type)                                                        \
  asm volatile(                                                                         \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" TERRACE_SUMS_64 \
      "}, %64, %65, adds, 1, 1, 0, 0;\n}"                                               \
      : TERRACE_TILES_16                                                                \
      : "l"(a), "l"(b), "r"(adds))
// The same with A in registers: no transposition of it, B is transposed.
#define TERRACE_REGISTERS_64(type)                                                     \
  asm volatile(                                                                        \
      "{\n.reg .pred adds;\nsetp.eq.u32 adds, 1, 1;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" TERRACE_SUMS_32 \
      "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 1;\n}"                                \
      : TERRACE_TILES_8                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define TERRACE_REGISTERS_96(type)                                                     \
  asm volatile(                                                                        \
      "{\n.reg .pred adds;\nsetp.eq.u32 adds, 1, 1;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " {" TERRACE_SUMS_48 \
      "}, {%48, %49, %50, %51}, %52, adds, 1, 1, 1;\n}"                                \
      : TERRACE_TILES_12                                                               \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define TERRACE_REGISTERS_128(type)                                                     \
  asm volatile(                                                                         \
      "{\n.reg .pred adds;\nsetp.eq.u32 adds, 1, 1;\n"                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" TERRACE_SUMS_64 \
      "}, {%64, %65, %66, %67}, %68, adds, 1, 1, 1;\n}"                                 \
      : TERRACE_TILES_16                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#endif

// sums += (or, without `adds`, =) A B over 16 places of k, both K-major: rows of A and rows of
// memory that are columns of B, k along them.
template <typename T, int kColumns>
__device__ inline void StartSharedProduct(uint64_t a, uint64_t b, int adds, float (*sums)[4]) {
  constexpr bool kF16 = std::is_same_v<T, F16>;
  static_assert(kF16 || std::is_same_v<T, BF16>);
  static_assert(kColumns == 64 || kColumns == 128);
#ifdef __CUDACC__
  if constexpr (!kF16 && kColumns == 64) TERRACE_SHARED_64("bf16");
  if constexpr (!kF16 && kColumns == 128) TERRACE_SHARED_128("bf16");
  if constexpr (kF16 && kColumns == 64) TERRACE_SHARED_64("f16");
  if constexpr (kF16 && kColumns == 128) TERRACE_SHARED_128("f16");
#else
  simt::StartProduct(a, b, {.columns = kColumns, .f16 = kF16, .adds = adds != 0}, sums);
#endif
}

// sums += A B over 16 places of k: A from registers, each lane its part of a fragment; rows of
// memory are k, columns of B along them.
template <typename T, int kColumns>
__device__ inline void StartRegisterProduct(const uint32_t* a, uint64_t b, float (*sums)[4]) {
  constexpr bool kF16 = std::is_same_v<T, F16>;
  static_assert(kF16 || std::is_same_v<T, BF16>);
  static_assert(kColumns == 64 || kColumns == 96 || kColumns == 128);
#ifdef __CUDACC__
  if constexpr (!kF16 && kColumns == 64) TERRACE_REGISTERS_64("bf16");
  if constexpr (!kF16 && kColumns == 96) TERRACE_REGISTERS_96("bf16");
  if constexpr (!kF16 && kColumns == 128) TERRACE_REGISTERS_128("bf16");
  if constexpr (kF16 && kColumns == 64) TERRACE_REGISTERS_64("f16");
  if constexpr (kF16 && kColumns == 96) TERRACE_REGISTERS_96("f16");
  if constexpr (kF16 && kColumns == 128) TERRACE_REGISTERS_128("f16");
#else
  simt::StartProduct(a, b, {.columns = kColumns, .f16 = kF16, .adds = true}, sums);
#endif
}

}  // namespace terrace::kernels::cuda
