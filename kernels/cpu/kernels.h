// The launch functions of the CPU backend, one per op and file; op.h says what each computes.
// Registered in registry.cc.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernel.h"

namespace terrace::kernels::cpu {

#define TERRACE_CPU_KERNEL(name) \
  Status name(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context)

TERRACE_CPU_KERNEL(Embedding);
TERRACE_CPU_KERNEL(EmbeddingGrad);
TERRACE_CPU_KERNEL(LayerNorm);
TERRACE_CPU_KERNEL(LayerNormGrad);
TERRACE_CPU_KERNEL(RmsNorm);
TERRACE_CPU_KERNEL(RmsNormGrad);
TERRACE_CPU_KERNEL(Matmul);
TERRACE_CPU_KERNEL(BiasGrad);
TERRACE_CPU_KERNEL(Gelu);
TERRACE_CPU_KERNEL(GeluGrad);
TERRACE_CPU_KERNEL(Swiglu);
TERRACE_CPU_KERNEL(SwigluGrad);
TERRACE_CPU_KERNEL(Rope);
TERRACE_CPU_KERNEL(Attention);
TERRACE_CPU_KERNEL(AttentionGrad);
TERRACE_CPU_KERNEL(LmHeadLoss);
TERRACE_CPU_KERNEL(LmHeadLossGrad);
TERRACE_CPU_KERNEL(AttentionBlock);
TERRACE_CPU_KERNEL(AttentionBlockGrad);
TERRACE_CPU_KERNEL(CrossEntropyRows);
TERRACE_CPU_KERNEL(CrossEntropyLoss);
TERRACE_CPU_KERNEL(CrossEntropyGrad);
TERRACE_CPU_KERNEL(AddResidual);
TERRACE_CPU_KERNEL(Permute);
TERRACE_CPU_KERNEL(GatherRows);
TERRACE_CPU_KERNEL(Cast);
TERRACE_CPU_KERNEL(Fill);
TERRACE_CPU_KERNEL(Scale);
TERRACE_CPU_KERNEL(Softcap);
TERRACE_CPU_KERNEL(Dropout);
TERRACE_CPU_KERNEL(Add);
TERRACE_CPU_KERNEL(SquaredNorm);
TERRACE_CPU_KERNEL(Sum);
TERRACE_CPU_KERNEL(SumStats);
TERRACE_CPU_KERNEL(GradScale);
TERRACE_CPU_KERNEL(Update);
TERRACE_CPU_KERNEL(UpdateStochastic);
TERRACE_CPU_KERNEL(UpdateInt8);
TERRACE_CPU_KERNEL(UpdateMatrix);
TERRACE_CPU_KERNEL(AttentionCached);
TERRACE_CPU_KERNEL(UpdateFactored);
TERRACE_CPU_KERNEL(EncodeBlocks);
TERRACE_CPU_KERNEL(DecodeBlocks);
TERRACE_CPU_KERNEL(SumCodes);

#undef TERRACE_CPU_KERNEL

}  // namespace terrace::kernels::cpu
