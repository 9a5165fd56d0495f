// The copy engine of sm_90 (TMA): one thread starts a box of a tensor (tensor_map.h) on its way to
// shared memory, and the box's bytes count on an mbarrier when they are there.
//
// The box lies in shared memory row after row, its 16-byte chunks changed by the tensor's swizzle,
// and wants to begin where the swizzle's pattern does (1024 bytes for rows of 128). All of its
// bytes are written and counted, zeros where the tensor ends. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "kernels/cuda/mbarrier.cuh"

namespace terrace::kernels::cuda {

// Where a box begins: the tensor's dimensions, innermost first.
struct BoxPlace {
  int column, head, row, sequence;
};

__device__ inline void StartBoxCopy(void* to, const CUtensorMap& map, const BoxPlace& from,
                                    Mbarrier* barrier) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(from.column), "r"(from.head), "r"(from.row), "r"(from.sequence),
      "r"(SharedAddress(barrier))
      : "memory");
#else
  const int32_t at[] = {from.column, from.head, from.row, from.sequence};
  simt::StartTensorCopy(to, &map, at, barrier);
#endif
}

}  // namespace terrace::kernels::cuda
