// The product's engine on AVX-512 BF16, for CPUs without AMX (Zen 4 and later, Cooper Lake): twice
// what f32 arithmetic does in the same time (bf16_vectors.h; gemm-2026-11-23.md of the benchmarks).
// Operands are rounded and packed as for AMX (gemm_amx_pack-inl.h).
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_bf16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/bf16_vectors.h"
#include "kernels/cpu/gemm_amx_pack-inl.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/gemm_finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX3

void Multiply(const BlockProduct& product, const BlockJob& previous) {
  FinishRows<BF16ByInstruction>(previous, 0, previous.rows());
  const uint16_t* a = reinterpret_cast<const uint16_t*>(product.a);
  const uint16_t* b = reinterpret_cast<const uint16_t*>(product.b);
  for (int64_t row = 0; row < kGemmPanel; row += kPairRows) {
    float* rows = product.block + row * kGemmPanel;
    SumPairs<false>({.a = a + row / kTileRows * kAmxTile + row % kTileRows * kTileLine,
                     .left = b,
                     .right = b + kAmxTile,
                     .a_next = kAmxPanelStep,
                     .b_next = kAmxPanelStep,
                     .depth = product.k / kAmxStep},
                    {.left = rows, .right = rows + kTileRows, .stride = kGemmPanel});
  }
}

void Finish(const BlockJob& job) { FinishRows<BF16ByInstruction>(job, 0, job.rows()); }

GemmEngine MakeBF16Engine() {
  return {.arithmetic = kAmxBF16Arithmetic,
          .pack_a = PackBF16<false>,
          .pack_b = PackBF16<true>,
          .multiply = Multiply,
          .finish = Finish};
}

#else

GemmEngine MakeBF16Engine() { return {}; }

#endif  // HWY_TARGET <= HWY_AVX3

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(MakeBF16Engine);

GemmEngine BF16GemmEngine() { return HWY_DYNAMIC_DISPATCH(MakeBF16Engine)(); }

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
