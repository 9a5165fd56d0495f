// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/registry.h"

#include <cpuid.h>
#include <hwy/targets.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

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
    {Op::kGatherRows, GatherRows},
    {Op::kCast, Cast},
    {Op::kFill, Fill},
    {Op::kAdd, Add},
    {Op::kSquaredNorm, SquaredNorm},
    {Op::kSumStats, SumStats},
    {Op::kGradScale, GradScale},
    {Op::kAdamw, Adamw},
};

constexpr bool EntriesFollowTheEnum() {
  int value = 1;
  for (const Entry& entry : kKernels) {
    if (static_cast<int>(entry.op) != value++) return false;
  }
  return value == static_cast<int>(Op::kLastOp) + 1;
}
static_assert(EntriesFollowTheEnum(), "one kernel an op, in the order of the enum");

// Registers of CPUID leaf 7, zero where the CPU has no such leaf.
struct CpuidLeaf7 {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  explicit CpuidLeaf7(unsigned subleaf) {
    if (__get_cpuid_count(7, subleaf, &eax, &ebx, &ecx, &edx) == 0) eax = ebx = ecx = edx = 0;
  }
};

// The CPU computes on bf16 tiles and the operating system saves them.
bool HasAmx() {
  constexpr unsigned kAmxBF16 = 1u << 22, kAmxTile = 1u << 24;
  constexpr unsigned kTileState = 3u << 17, kOsxsave = 1u << 27;
  const unsigned edx = CpuidLeaf7(0).edx;
  if ((edx & kAmxBF16) == 0 || (edx & kAmxTile) == 0) return false;
  unsigned eax = 0, ebx = 0, ecx = 0, unused = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &unused) == 0 || (ecx & kOsxsave) == 0) return false;
  unsigned enabled = 0, enabled_high = 0;
  asm volatile("xgetbv" : "=a"(enabled), "=d"(enabled_high) : "c"(0));
  return (enabled & kTileState) == kTileState;
}

bool HasAvx512() { return (hwy::SupportedTargets() & HWY_AVX3) != 0; }

bool HasAvx512BF16() {
  constexpr unsigned kAvx512BF16 = 1u << 5;
  return HasAvx512() && (CpuidLeaf7(1).eax & kAvx512BF16) != 0;
}

}  // namespace

Kernel Find(Op op) { return kKernels[static_cast<size_t>(op) - 1].kernel; }

const char* InstructionSet() {
  if (HasAmx()) return "avx512+amx_bf16";
  if (HasAvx512BF16()) return "avx512+bf16";
  if (HasAvx512()) return "avx512";
  if ((hwy::SupportedTargets() & HWY_AVX2) != 0) return "avx2";
  return "sse4";
}

bool HasFastBF16() { return HasAmx() || HasAvx512BF16(); }

Status Prepare(int threads) { return PrepareGemm(threads); }

}  // namespace terrace::kernels::cpu
