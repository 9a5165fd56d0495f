// The product's engine on AMX tiles.
//
// bf16: elements are rounded to bf16 while they are packed. f32: each element is split into three
// bf16 parts that add up to it, x = hi + mid + lo, and six of the nine products of parts are summed
// in f32. What is left out is at most 2^-23 of a product, of either sign, and on average below
// 2^-26: less than f32 loses when it adds. Sums of 128 products at a time are short enough that the
// sixfold number of additions does not show: errors are measured at a fraction of those of a plain
// f32 product (tests/unit/kernels/gemm).
//
// The limits of the split: an element below 2^-126 counts as zero, one below 2^-102 has fewer bits,
// and so has a product below 2^-102. The absolute error of that is less than 2^-124 (|a| + |b| + 1)
// a term. Infinite and NaN elements make the results that they enter NaN or infinite. Finite
// elements never become infinite.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_amx.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_amx_pack-inl.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/gemm_finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX3

// Finishes the previous block in pieces, one a step.
class Finisher {
 public:
  Finisher(const BlockJob& job, int64_t steps)
      : job_(job), rows_(job.rows()), rows_a_step_(CeilDiv(rows_, std::max<int64_t>(steps, 1))) {}
  void Step() {
    if (row_ >= rows_) return;
    const int64_t end = std::min(rows_, row_ + rows_a_step_);
    FinishRows<BF16ByInstruction>(job_, row_, end);
    row_ = end;
  }

 private:
  const BlockJob& job_;
  const int64_t rows_, rows_a_step_;
  int64_t row_ = 0;
};

template <bool kStreamA>
TERRACE_AMX void MultiplyBF16Panels(const BlockProduct& product, const BlockJob& previous) {
  const uint16_t* a = reinterpret_cast<const uint16_t*>(product.a);
  const uint16_t* b = reinterpret_cast<const uint16_t*>(product.b);
  const int64_t steps = product.k / kAmxStep;
  Finisher finisher(previous, steps);
  AmxFence();
  AmxZeroBlock();
  for (int64_t step = 0; step < steps; ++step) {
    if constexpr (kStreamA) {
      AmxStepStreamA(a, b);
    } else {
      AmxStepStreamB(a, b);
    }
    a += kAmxPanelStep;
    b += kAmxPanelStep;
    finisher.Step();
  }
  AmxStoreBlock(product.block, kGemmPanel);
}

void MultiplyBF16(const BlockProduct& product, const BlockJob& previous) {
  product.stream_a ? MultiplyBF16Panels<true>(product, previous)
                   : MultiplyBF16Panels<false>(product, previous);
}

template <bool kStream>
TERRACE_AMX inline void LoadA(const uint16_t* a) {
  if constexpr (kStream) {
    _tile_stream_loadd(4, a, 64);
    _tile_stream_loadd(5, a + kAmxTile, 64);
  } else {
    _tile_loadd(4, a, 64);
    _tile_loadd(5, a + kAmxTile, 64);
  }
}
template <bool kStream>
TERRACE_AMX inline void LoadB(const uint16_t* b) {
  if constexpr (kStream) {
    _tile_stream_loadd(6, b, 64);
    _tile_stream_loadd(7, b + kAmxTile, 64);
  } else {
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kAmxTile, 64);
  }
}
TERRACE_AMX inline void MultiplyLoaded() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Seven loads for six products of parts, the small ones first.
template <bool kStreamA>
TERRACE_AMX inline void MultiplySplitStep(const uint16_t* a, const uint16_t* b) {
  constexpr int64_t kMid = kAmxPanelStep, kLo = 2 * kAmxPanelStep;
  LoadA<kStreamA>(a + kLo);
  LoadB<!kStreamA>(b);
  MultiplyLoaded();
  LoadA<kStreamA>(a + kMid);
  MultiplyLoaded();
  LoadB<!kStreamA>(b + kMid);
  MultiplyLoaded();
  LoadA<kStreamA>(a);
  MultiplyLoaded();
  LoadB<!kStreamA>(b + kLo);
  MultiplyLoaded();
  LoadB<!kStreamA>(b);
  MultiplyLoaded();
}

template <bool kStreamA>
TERRACE_AMX void MultiplySplitPanels(const BlockProduct& product, const BlockJob& previous) {
  const uint16_t* a = reinterpret_cast<const uint16_t*>(product.a);
  const uint16_t* b = reinterpret_cast<const uint16_t*>(product.b);
  const int64_t steps = product.k / kAmxStep;
  Finisher finisher(previous, steps);
  AmxFence();
  AmxZeroBlock();
  for (int64_t step = 0; step < steps; ++step) {
    MultiplySplitStep<kStreamA>(a, b);
    a += kParts * kAmxPanelStep;
    b += kParts * kAmxPanelStep;
    finisher.Step();
  }
  AmxStoreBlock(product.block, kGemmPanel);
}

void MultiplySplit(const BlockProduct& product, const BlockJob& previous) {
  product.stream_a ? MultiplySplitPanels<true>(product, previous)
                   : MultiplySplitPanels<false>(product, previous);
}

void Finish(const BlockJob& job) { FinishRows<BF16ByInstruction>(job, 0, job.rows()); }

// Tile configuration outlives a scope here: the driver pairs the two calls.
void BeginThread() { AmxConfigureTiles(); }
void EndThread() { AmxReleaseTiles(); }

GemmEngine MakeAmxEngine(MatmulPrecision precision) {
  const bool bf16 = precision == MatmulPrecision::kBF16;
  return {.arithmetic = bf16 ? kAmxBF16Arithmetic : kAmxSplitArithmetic,
          .pack_a = bf16 ? PackBF16<false> : PackSplit<false>,
          .pack_b = bf16 ? PackBF16<true> : PackSplit<true>,
          .multiply = bf16 ? MultiplyBF16 : MultiplySplit,
          .finish = Finish,
          .begin_thread = BeginThread,
          .end_thread = EndThread};
}

#else

// No CPU has AMX without AVX-512.
GemmEngine MakeAmxEngine(MatmulPrecision) { return {}; }

#endif  // HWY_TARGET <= HWY_AVX3

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(MakeAmxEngine);

GemmEngine AmxGemmEngine(MatmulPrecision precision) {
  return HWY_DYNAMIC_DISPATCH(MakeAmxEngine)(precision);
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
