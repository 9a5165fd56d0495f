// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/registry.h"

#include <hwy/targets.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/preference_loss.h"

namespace terrace::kernels::cpu {
namespace {

struct Entry {
  Op op;
  Kernel kernel;
};

constexpr Entry kKernels[] = {
    {Op::kEmbedding, Embedding},
    {Op::kEmbeddingGrad, EmbeddingGrad},
    {Op::kLayerNorm, LayerNorm},
    {Op::kLayerNormGrad, LayerNormGrad},
    {Op::kRmsNorm, RmsNorm},
    {Op::kRmsNormGrad, RmsNormGrad},
    {Op::kMatmul, Matmul},
    {Op::kBiasGrad, BiasGrad},
    {Op::kGelu, Gelu},
    {Op::kGeluGrad, GeluGrad},
    {Op::kSwiglu, Swiglu},
    {Op::kSwigluGrad, SwigluGrad},
    {Op::kRope, Rope},
    {Op::kAttention, Attention},
    {Op::kAttentionGrad, AttentionGrad},
    {Op::kLmHeadLoss, LmHeadLoss},
    {Op::kLmHeadLossGrad, LmHeadLossGrad},
    {Op::kAttentionBlock, AttentionBlock},
    {Op::kAttentionBlockGrad, AttentionBlockGrad},
    {Op::kCrossEntropyRows, CrossEntropyRows},
    {Op::kCrossEntropyLoss, CrossEntropyLoss},
    {Op::kCrossEntropyGrad, CrossEntropyGrad},
    {Op::kAddResidual, AddResidual},
    {Op::kPermute, Permute},
    {Op::kGatherRows, GatherRows},
    {Op::kCast, Cast},
    {Op::kFill, Fill},
    {Op::kAdd, Add},
    {Op::kSquaredNorm, SquaredNorm},
    {Op::kSum, Sum},
    {Op::kSumStats, SumStats},
    {Op::kGradScale, GradScale},
    {Op::kUpdate, Update},
    {Op::kUpdateStochastic, UpdateStochastic},
    {Op::kUpdateInt8, UpdateInt8},
    {Op::kEncodeBlocks, EncodeBlocks},
    {Op::kDecodeBlocks, DecodeBlocks},
    {Op::kSumBlocks, SumCodes},
    {Op::kScale, Scale},
    {Op::kDropout, Dropout},
    {Op::kUpdateMatrix, UpdateMatrix},
    {Op::kAttentionCached, AttentionCached},
    {Op::kUpdateFactored, UpdateFactored},
    {Op::kSoftcap, Softcap},
    {Op::kPreferenceLoss, PreferenceLoss},
};

constexpr bool EntriesFollowTheEnum() {
  int value = 1;
  for (const Entry& entry : kKernels) {
    if (static_cast<int>(entry.op) != value++) return false;
  }
  return value == static_cast<int>(Op::kLastOp) + 1;
}
static_assert(EntriesFollowTheEnum(), "one kernel an op, in the order of the enum");

bool HasAvx512() { return (hwy::SupportedTargets() & HWY_AVX3) != 0; }

}  // namespace

Kernel Find(Op op) { return kKernels[static_cast<size_t>(op) - 1].kernel; }

const char* InstructionSet() {
  if (AmxReady()) return "avx512+amx_bf16";
  if (HasBF16Vectors()) return "avx512_bf16";
  if (HasAvx512()) return "avx512";
  if ((hwy::SupportedTargets() & HWY_AVX2) != 0) return "avx2";
  return "sse4";
}

Status Prepare(int threads) { return PrepareGemm(threads); }

}  // namespace terrace::kernels::cpu
