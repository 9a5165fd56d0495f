// How warps of a block with different parts wait for each other on sm_90: mbarriers, which count
// arrivals and the bytes of copies; barriers with numbers; registers that one part leaves to the
// other.
//
// An mbarrier goes through phases. One is complete when `count` threads have arrived and all bytes
// that they expect are there; WaitForPhase(parity) returns when the phase of that parity is: 0 for
// the first, 1 for the second; 1 on a new barrier returns at once. (PTX ISA, "Parallel
// Synchronization and Communication Instructions: mbarrier".) Tests that compile kernels as host
// code bring their own (tests/unit/kernels/cuda/simt/hopper.h). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {

// In dynamic shared memory, 8-byte aligned.
using Mbarrier = uint64_t;

// In the block's window of shared memory: what descriptors and instructions take.
__device__ inline uint32_t SharedAddress(const void* place) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
#else
  return simt::SharedAddress(place);
#endif
}

// By one thread; the others, and copies, may use it after ShareBarriers of that thread and a
// barrier of the block.
__device__ inline void InitBarrier(Mbarrier* barrier, unsigned count) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(count)
               : "memory");
#else
  simt::InitBarrier(barrier, count);
#endif
}
__device__ inline void ShareBarriers() {
#ifdef __CUDACC__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ inline void Arrive(Mbarrier* barrier) {
#ifdef __CUDACC__
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.release.cta.shared::cta.b64 state, [%0];\n}" ::"r"(
          SharedAddress(barrier))
      : "memory");
#else
  simt::Arrive(barrier);
#endif
}

// Arrives; the phase is complete only when so many bytes more have been copied.
__device__ inline void ArriveExpecting(Mbarrier* barrier, unsigned bytes) {
#ifdef __CUDACC__
  asm volatile(
      "{\n.reg .b64 state;\n"
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 state, [%0], %1;\n}" ::"r"(
          SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
#else
  simt::ArriveExpecting(barrier, bytes);
#endif
}

__device__ inline void WaitForPhase(Mbarrier* barrier, unsigned parity) {
#ifdef __CUDACC__
  unsigned complete = 0;
  while (complete == 0) {  // each attempt sleeps for a while in hardware
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;\n}"
        : "=r"(complete)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
#else
  simt::WaitForPhase(barrier, parity);
#endif
}

// Barriers of `threads` threads, whole warps: Sync arrives and waits, ArriveAt arrives alone.
// Number 0 is __syncthreads.
__device__ inline void Sync(int number, int threads) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
#else
  simt::SyncNamed(static_cast<unsigned>(number), static_cast<unsigned>(threads));
#endif
}
__device__ inline void ArriveAt(int number, int threads) {
#ifdef __CUDACC__
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
#else
  simt::ArriveNamed(static_cast<unsigned>(number), static_cast<unsigned>(threads));
#endif
}

// Registers of each thread of the warpgroup from now on; all its warps must call it. Growing waits
// until others have left enough.
template <int kRegisters>
__device__ inline void LeaveRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// The stage of a ring of kStages that a thread is at, and the parity of its phase there.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;

  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace terrace::kernels::cuda
