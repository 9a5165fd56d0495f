// What has no spelling in C++: dynamic shared memory, copies to it, matrix instructions, fast
// powers of two. The tests that compile kernels as host code bring their own
// (tests/unit/kernels/cuda/simt).
//
// Fragments of m16n8k16, lane l with g = l / 4 and t = l % 4 (PTX ISA, "Matrix fragments for
// mma.m16n8k16"): a[0] holds row g, columns 2t and 2t + 1 of A; a[1] row g + 8; a[2] and a[3] the
// same rows, columns 8 further. b[0] holds rows 2t and 2t + 1 of column g of B, b[1] rows 8
// further. c[0] and c[1] are row g, columns 2t and 2t + 1 of C; c[2] and c[3] row g + 8. The first
// of a pair is in the lower half. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {

// Of the block, 16-byte aligned.
__device__ inline unsigned char* DynamicShared() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
#else
  return simt::DynamicShared();
#endif
}

// 2^x to 22 bits; 0 where that is below the normal numbers. One instruction where exp2f takes four.
__device__ inline float FastExp2(float x) {
#ifdef __CUDACC__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

// 16 bytes of global memory to shared memory, both 16-byte aligned, or zeros where there is nothing
// to copy: on their way when this returns. They are there for the thread after FinishCopies, for
// the others of the block after a barrier behind that.
__device__ inline void StartCopy(void* to, const void* from, bool exists) {
#ifdef __CUDACC__
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const uint32_t bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
#else
  simt::StartCopy(to, from, exists);
#endif
}

// Waits for all copies that the thread has started.
__device__ inline void FinishCopies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#else
  simt::FinishCopies();
#endif
}

// C += A B for 16 x 16 and 16 x 8 fragments of T (BF16 or F16), C in f32.
template <typename T = BF16>
__device__ inline void MultiplyFragments(const uint32_t* a, const uint32_t* b, float* c) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, F16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  simt::MultiplyFragments(a, b, c, std::is_same_v<T, F16>);
#endif
}

// Loads four matrices of 8 x 8 elements of two bytes from shared memory: lane 8 j + i names row i
// of matrix j, 16-byte aligned. Lane l gets elements 2t and 2t + 1 of row g of each, or with
// kTransposed elements g of rows 2t and 2t + 1.
template <bool kTransposed>
__device__ inline void LoadMatrices(const BF16* row, uint32_t* out) {
#ifdef __CUDACC__
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
  }
#else
  simt::LoadMatrices(row, kTransposed, out);
#endif
}

// A tile of bf16 or f16 in shared memory, rows `stride` elements apart (a multiple of 8). Copying
// and loading it moves bits: which of the two they are, products say.
struct Tile {
  BF16* data;
  int stride;

  __device__ const BF16* At(int row, int column) const { return data + row * stride + column; }
};

// The fragment of A at (row, column) of the tile.
__device__ inline void LoadA(const Tile& tile, int row, int column, uint32_t* a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LoadMatrices<false>(tile.At(row + lane % 16, column + lane / 16 * 8), a);
}

// Two fragments of B, one behind the other, whose columns are rows of the tile: B[k][n] =
// tile[row + n][column + k] for 16 k and 16 n.
__device__ inline void LoadTwoB(const Tile& tile, int row, int column, uint32_t* b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LoadMatrices<false>(tile.At(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8), b);
}

// The same for a B that lies in the tile as it is: B[k][n] = tile[row + k][column + n].
__device__ inline void LoadTwoBRows(const Tile& tile, int row, int column, uint32_t* b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LoadMatrices<true>(tile.At(row + lane % 16, column + lane / 16 * 8), b);
}

}  // namespace terrace::kernels::cuda
