// The attention engines for CPUs with bf16 arithmetic (x86 only): their functions.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/attention.h"

namespace terrace::kernels::cpu {

// REQUIRES: AmxReady() (kernels/cpu/amx.h). kBF16 rounds operands to bf16; kF32 splits them into
// three bf16 parts each, which is as exact as f32 products.
AttentionEngine AmxAttentionEngine(MatmulPrecision precision);

// On vectors; operands are rounded to bf16. REQUIRES: HasBF16Vectors() (kernels/cpu/amx.h).
AttentionEngine BF16AttentionEngine();

}  // namespace terrace::kernels::cpu
