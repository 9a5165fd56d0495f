// What has no spelling in C++: dynamic shared memory and matrix instructions. The tests that
// compile kernels as host code bring their own (tests/unit/kernels/cuda/simt).
//
// Fragments of m16n8k16, lane l with g = l / 4 and t = l % 4 (PTX ISA, "Matrix fragments for
// mma.m16n8k16"): a[0] holds row g, columns 2t and 2t + 1 of A; a[1] row g + 8; a[2] and a[3] the
// same rows, columns 8 further. b[0] holds rows 2t and 2t + 1 of column g of B, b[1] rows 8
// further. c[0] and c[1] are row g, columns 2t and 2t + 1 of C; c[2] and c[3] row g + 8. The first
// of a pair is in the lower half. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// C += A B for 16 x 16 and 16 x 8 fragments of bf16, C in f32.
__device__ inline void MultiplyFragments(const uint32_t* a, const uint32_t* b, float* c) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  simt::MultiplyFragments(a, b, c);
#endif
}

// A tile of bf16 in shared memory, rows `stride` elements apart (a multiple of 8).
struct Tile {
  BF16* data;
  int stride;

  __device__ uint32_t Pair(int row, int column) const {
    return *reinterpret_cast<const uint32_t*>(data + row * stride + column);
  }
};

// The fragment of A at (row, column) of the tile.
__device__ inline void LoadA(const Tile& tile, int row, int column, uint32_t* a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  a[0] = tile.Pair(row + g, column + 2 * t);
  a[1] = tile.Pair(row + g + 8, column + 2 * t);
  a[2] = tile.Pair(row + g, column + 2 * t + 8);
  a[3] = tile.Pair(row + g + 8, column + 2 * t + 8);
}

// The fragment of B whose columns are rows of the tile: B[k][n] = tile[row + n][column + k].
__device__ inline void LoadB(const Tile& tile, int row, int column, uint32_t* b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  b[0] = tile.Pair(row + g, column + 2 * t);
  b[1] = tile.Pair(row + g, column + 2 * t + 8);
}

// The fragment of B that lies in the tile as it is: B[k][n] = tile[row + k][column + n].
__device__ inline void LoadBRows(const Tile& tile, int row, int column, uint32_t* b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#ifdef __CUDACC__
  // Lanes 0 to 15 name the rows; the instruction transposes 8 x 8 blocks on the way.
  const BF16* from = tile.data + (row + lane % 16) * tile.stride + column;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(from));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(b[0]), "=r"(b[1])
               : "r"(address)
               : "memory");
#else
  const int g = lane / 4, t = lane % 4;
  for (int half = 0; half < 2; ++half) {
    const BF16* from = tile.data + (row + half * 8 + 2 * t) * tile.stride + column + g;
    b[half] = from[0].bits | static_cast<uint32_t>(from[tile.stride].bits) << 16;
  }
#endif
}

}  // namespace terrace::kernels::cuda
