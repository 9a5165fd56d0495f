// What a softmax over one row of logits needs: the largest of them, and exponentials below it.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_SOFTMAX_INL_H_
#undef TERRACE_KERNELS_CPU_SOFTMAX_INL_H_
#else
#define TERRACE_KERNELS_CPU_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

// Of `count` > 0 values; a NaN among them may be passed over.
template <typename T>
float LargestOf(const T* row, int64_t count) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  V top0 = hn::Set(d, std::numeric_limits<float>::lowest()), top1 = top0;
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    top0 = hn::Max(top0, LoadVector(row + i));
    top1 = hn::Max(top1, LoadVector(row + i + lanes));
  }
  float top = hn::GetLane(hn::MaxOfLanes(d, hn::Max(top0, top1)));
  for (; i < count; ++i) {
    top = std::max(top, hn::GetLane(Tail{1}.Load(row + i)));
  }
  return top;
}

// In f32, lane by lane. `cap` is Uncapped or Capped (softcap-inl.h).
template <typename T, typename Cap>
float SumOfLogits(const T* row, int64_t count, const Cap& cap) {
  return SumVectors(count,
                    [&](int64_t i, auto access) HWY_ATTR { return cap(access.Load(row + i)); });
}

// exp(x - top), for x <= top, but not below 2^-100: divided by a sum it stays a normal number, and
// subnormal ones are slow. A NaN stays one, because Max returns its second argument then.
HWY_INLINE V ExpBelow(V x, V top) {
  const D d;
  constexpr float kLog2E = 1.4426950408889634f;
  return PowerOfTwo(hn::Max(hn::Set(d, -100.0f), hn::Mul(hn::Sub(x, top), hn::Set(d, kLog2E))));
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
