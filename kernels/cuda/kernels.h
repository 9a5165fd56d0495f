// The launch functions of the CUDA backend, one per op; op.h says what each computes. Registered in
// registry.cc; an op that is not here has no CUDA kernel yet.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/context.h"

namespace terrace::kernels::cuda {

#define TERRACE_CUDA_KERNEL(name) \
  Status name(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context)

TERRACE_CUDA_KERNEL(Embedding);
TERRACE_CUDA_KERNEL(EmbeddingGrad);
TERRACE_CUDA_KERNEL(LayerNorm);
TERRACE_CUDA_KERNEL(LayerNormGrad);
TERRACE_CUDA_KERNEL(RmsNorm);
TERRACE_CUDA_KERNEL(RmsNormGrad);
TERRACE_CUDA_KERNEL(Matmul);
TERRACE_CUDA_KERNEL(BiasGrad);
TERRACE_CUDA_KERNEL(Gelu);
TERRACE_CUDA_KERNEL(GeluGrad);
TERRACE_CUDA_KERNEL(Swiglu);
TERRACE_CUDA_KERNEL(SwigluGrad);
TERRACE_CUDA_KERNEL(Rope);
TERRACE_CUDA_KERNEL(Attention);
TERRACE_CUDA_KERNEL(AttentionGrad);
TERRACE_CUDA_KERNEL(LmHeadLoss);
TERRACE_CUDA_KERNEL(LmHeadLossGrad);
TERRACE_CUDA_KERNEL(AttentionBlock);
TERRACE_CUDA_KERNEL(AttentionBlockGrad);
TERRACE_CUDA_KERNEL(CrossEntropyRows);
TERRACE_CUDA_KERNEL(CrossEntropyLoss);
TERRACE_CUDA_KERNEL(CrossEntropyGrad);
TERRACE_CUDA_KERNEL(AddResidual);
TERRACE_CUDA_KERNEL(Permute);
TERRACE_CUDA_KERNEL(GatherRows);
TERRACE_CUDA_KERNEL(Cast);
TERRACE_CUDA_KERNEL(Fill);
TERRACE_CUDA_KERNEL(Scale);
TERRACE_CUDA_KERNEL(Softcap);
TERRACE_CUDA_KERNEL(Dropout);
TERRACE_CUDA_KERNEL(Add);
TERRACE_CUDA_KERNEL(SquaredNorm);
TERRACE_CUDA_KERNEL(Sum);
TERRACE_CUDA_KERNEL(SumStats);
TERRACE_CUDA_KERNEL(GradScale);
TERRACE_CUDA_KERNEL(Update);
TERRACE_CUDA_KERNEL(UpdateStochastic);
TERRACE_CUDA_KERNEL(UpdateInt8);
TERRACE_CUDA_KERNEL(UpdateMatrix);
TERRACE_CUDA_KERNEL(AttentionCached);
TERRACE_CUDA_KERNEL(UpdateFactored);
TERRACE_CUDA_KERNEL(EncodeBlocks);
TERRACE_CUDA_KERNEL(DecodeBlocks);
TERRACE_CUDA_KERNEL(SumCodes);

#undef TERRACE_CUDA_KERNEL

// Whether kernels can be loaded on the calling thread's device: it needs code for its architecture,
// or PTX that its driver compiles.
Status CheckLoads();

}  // namespace terrace::kernels::cuda
