// The attention kernels by arithmetic: attention.cu chooses among them. f32 vectors for any head
// size up to 256; matrix instructions on bf16 or f16 for head sizes up to 128, those of every
// device or sm_90a's own.
//
// Internal to kernels/cuda. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {

// By op.h's names; what the forward op lacks is empty.
struct AttentionArguments {
  AttentionShape shape;
  Operand q, k, v, o;
  float* lse;
  Operand d_o, dq, dk, dv;
  float* delta;  // of lse's shape: the sums of do * o
  bool wide;     // q, k, v (and do) are of the products' type with rows of whole, aligned 16 bytes
};

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

Status AttentionF32(const AttentionArguments& arguments, const Context& context);
Status AttentionGradF32(const AttentionArguments& arguments, const Context& context);

Status AttentionMma(const AttentionArguments& arguments, const Context& context);
Status AttentionGradMma(const AttentionArguments& arguments, const Context& context);
Status AttentionMmaF16(const AttentionArguments& arguments, const Context& context);
Status AttentionGradMmaF16(const AttentionArguments& arguments, const Context& context);

// sm_90a alone, of bf16 or f16 that the copy engine can take (attention_choice.h).
Status AttentionWgmma(const AttentionArguments& arguments, const Context& context);
Status AttentionQueryGradWgmma(const AttentionArguments& arguments, const Context& context);
Status AttentionKeyGradWgmma(const AttentionArguments& arguments, const Context& context);
Status AttentionWgmmaF16(const AttentionArguments& arguments, const Context& context);
Status AttentionQueryGradWgmmaF16(const AttentionArguments& arguments, const Context& context);
Status AttentionKeyGradWgmmaF16(const AttentionArguments& arguments, const Context& context);

}  // namespace terrace::kernels::cuda
