// The attention engine for CPUs with AMX (x86 only): its functions.
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

}  // namespace terrace::kernels::cpu
