// The CPU backend: which kernel implements which op. Never null: every op of the table has a CPU
// kernel, which is also the numeric reference of the other backends. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernel.h"

namespace terrace::kernels::cpu {

Kernel Find(Op op);

// The widest code path in use, for plans and logs: "avx512+amx_bf16", "avx512_bf16", "avx512",
// "avx2", "sse4". bf16 products are faster than f32 ones on the first two only.
const char* InstructionSet();

// To be called once per process before the first kernel: asks the operating system for AMX state
// where there is AMX. `threads` is the largest number a context will carry.
Status Prepare(int threads);

}  // namespace terrace::kernels::cpu
