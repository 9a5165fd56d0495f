// The product's engine on AVX-512 BF16, for CPUs without AMX (Zen 4 and later, Cooper Lake): an
// instruction adds two products of bf16 to each of sixteen f32 sums, twice what f32 arithmetic does
// in the same time.
//
// Operands are rounded and packed as for AMX tiles (gemm_amx_pack-inl.h): a tile of A is 16 rows of
// pairs of K, a tile of B is 16 pairs of K, each of 16 columns. Like AMX the instruction takes
// subnormal operands and results for zero.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_bf16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_amx_pack-inl.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/gemm_finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX3

constexpr int64_t kRowsAtOnce = 8;  // beside two vectors of columns: sixteen sums in registers
constexpr int64_t kTilePairs = 16;
constexpr int64_t kTileLine = 32;  // bf16 elements of a tile's row

TERRACE_AMX inline __m512bh Pairs(const uint16_t* row) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(row));
}
TERRACE_AMX inline __m512bh OnePair(const uint16_t* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

// Rows of one tile of A, from the first on; both tiles of B. `rows` is [kRowsAtOnce, 32] of the
// block.
TERRACE_AMX inline void SumRows(const uint16_t* a, const uint16_t* b, int64_t steps, float* rows) {
  __m512 sum[kRowsAtOnce][2];
  for (int64_t r = 0; r < kRowsAtOnce; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step, a += kAmxPanelStep, b += kAmxPanelStep) {
    for (int64_t pair = 0; pair < kTilePairs; ++pair) {
      const __m512bh left = Pairs(b + pair * kTileLine);
      const __m512bh right = Pairs(b + kAmxTile + pair * kTileLine);
      for (int64_t r = 0; r < kRowsAtOnce; ++r) {
        const __m512bh factor = OnePair(a + r * kTileLine + 2 * pair);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], factor, left);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], factor, right);
      }
    }
  }
  for (int64_t r = 0; r < kRowsAtOnce; ++r) {
    _mm512_storeu_ps(rows + r * kGemmPanel, sum[r][0]);
    _mm512_storeu_ps(rows + r * kGemmPanel + 16, sum[r][1]);
  }
}

void Multiply(const BlockProduct& product, const BlockJob& previous) {
  FinishRows<BF16ByInstruction>(previous, 0, previous.rows());
  const uint16_t* a = reinterpret_cast<const uint16_t*>(product.a);
  const uint16_t* b = reinterpret_cast<const uint16_t*>(product.b);
  for (int64_t row = 0; row < kGemmPanel; row += kRowsAtOnce) {
    const uint16_t* tile = a + row / kTileRows * kAmxTile + row % kTileRows * kTileLine;
    SumRows(tile, b, product.k / kAmxStep, product.block + row * kGemmPanel);
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
