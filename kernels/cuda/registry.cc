// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/registry.h"

#include <string>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/preference_loss.h"

namespace terrace::kernels::cuda {

Kernel Find(Op op) {
  switch (op) {
    case Op::kEmbedding:
      return Embedding;
    case Op::kEmbeddingGrad:
      return EmbeddingGrad;
    case Op::kLayerNorm:
      return LayerNorm;
    case Op::kLayerNormGrad:
      return LayerNormGrad;
    case Op::kRmsNorm:
      return RmsNorm;
    case Op::kRmsNormGrad:
      return RmsNormGrad;
    case Op::kMatmul:
      return Matmul;
    case Op::kBiasGrad:
      return BiasGrad;
    case Op::kGelu:
      return Gelu;
    case Op::kGeluGrad:
      return GeluGrad;
    case Op::kSwiglu:
      return Swiglu;
    case Op::kSwigluGrad:
      return SwigluGrad;
    case Op::kRope:
      return Rope;
    case Op::kAttention:
      return Attention;
    case Op::kAttentionGrad:
      return AttentionGrad;
    case Op::kAttentionBlock:
      return AttentionBlock;
    case Op::kAttentionBlockGrad:
      return AttentionBlockGrad;
    case Op::kLmHeadLoss:
      return LmHeadLoss;
    case Op::kLmHeadLossGrad:
      return LmHeadLossGrad;
    case Op::kCrossEntropyRows:
      return CrossEntropyRows;
    case Op::kCrossEntropyLoss:
      return CrossEntropyLoss;
    case Op::kCrossEntropyGrad:
      return CrossEntropyGrad;
    case Op::kAddResidual:
      return AddResidual;
    case Op::kPermute:
      return Permute;
    case Op::kGatherRows:
      return GatherRows;
    case Op::kCast:
      return Cast;
    case Op::kFill:
      return Fill;
    case Op::kAdd:
      return Add;
    case Op::kSquaredNorm:
      return SquaredNorm;
    case Op::kSum:
      return Sum;
    case Op::kSumStats:
      return SumStats;
    case Op::kGradScale:
      return GradScale;
    case Op::kUpdate:
      return Update;
    case Op::kUpdateStochastic:
      return UpdateStochastic;
    case Op::kUpdateInt8:
      return UpdateInt8;
    case Op::kEncodeBlocks:
      return EncodeBlocks;
    case Op::kDecodeBlocks:
      return DecodeBlocks;
    case Op::kSumBlocks:
      return SumCodes;
    case Op::kScale:
      return Scale;
    case Op::kDropout:
      return Dropout;
    case Op::kUpdateMatrix:
      return UpdateMatrix;
    case Op::kAttentionCached:
      return AttentionCached;
    case Op::kUpdateFactored:
      return UpdateFactored;
    case Op::kSoftcap:
      return Softcap;
    case Op::kPreferenceLoss:
      return PreferenceLoss;
  }
  return nullptr;
}

Status CheckSupported(std::span<const Op> ops) {
  for (Op op : ops) {
    if (Find(op) != nullptr) continue;
    return {"cuda: there is no kernel for op '" + std::string(Name(op)) +
            "' yet: run on the CPU, or choose a layout without it"};
  }
  return {};
}

}  // namespace terrace::kernels::cuda
