// The CPU backend: which kernel implements which op. Never null: every op of the table has a CPU kernel, which is also the
// numeric reference of the other backends. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernel.h"

namespace terrace::kernels::cpu {

Kernel Find(Op op);

// What the CPU offers, for plans and logs: "avx512+amx_bf16", "avx2", ...
const char* InstructionSet();
// True when kBF16 products are faster here than f32 ones (AMX, or AVX-512 BF16).
bool HasFastBF16();

// To be called once per process before the first kernel: asks the kernel for AMX state where there is AMX, creates what
// libraries would otherwise create on first use. `threads` is the largest number a context will carry.
Status Prepare(int threads);

}  // namespace terrace::kernels::cpu
