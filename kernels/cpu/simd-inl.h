// What the vectorised kernels share: f32 arithmetic on f32, bf16 or f16 memory, tails, sums in a
// fixed order, sigmoid.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_SIMD_INL_H_
#undef TERRACE_KERNELS_CPU_SIMD_INL_H_
#else
#define TERRACE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/tensor_view.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using BF16 = hwy::bfloat16_t;
using F16 = hwy::float16_t;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

HWY_INLINE V LoadVector(const float* p) { return hn::LoadU(D(), p); }
HWY_INLINE void StoreVector(V v, float* p) { hn::StoreU(v, D(), p); }

HWY_INLINE V LoadVector(const BF16* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

// Rounds to nearest even. A NaN stays one: its upper bits are kept and the quiet bit is set.
HWY_INLINE void StoreVector(V v, BF16* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto nan = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, nan, rounded));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, upper)), d16, reinterpret_cast<uint16_t*>(p));
}

// f16 by the CPU's own conversions where it has them (F16C, which comes with AVX2, and AVX-512).
// Elsewhere by arithmetic (kernels/half.h says how): what Highway 1.0 does there cuts and knows no
// infinity.
#if HWY_TARGET <= HWY_AVX2
HWY_INLINE V LoadVector(const F16* p) {
  const hn::Rebind<F16, D> d16;
  return hn::PromoteTo(D(), hn::LoadU(d16, p));
}
HWY_INLINE void StoreVector(V v, F16* p) {
  const hn::Rebind<F16, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, p);
}
#else
HWY_INLINE V LoadVector(const F16* p) {
  const D d;
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto half = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(d32, 0x7fff)));
  const auto exponent = hn::And(shifted, hn::Set(d32, 0x0f800000));
  const auto rebias = hn::Set(d32, 112u << 23);
  auto bits = hn::Add(shifted, rebias);
  bits = hn::IfThenElse(hn::Eq(exponent, hn::Set(d32, 0x0f800000)), hn::Add(bits, rebias), bits);
  const V subnormal = hn::Sub(hn::BitCast(d, hn::Add(bits, hn::Set(d32, 1u << 23))),
                              hn::BitCast(d, hn::Set(d32, 113u << 23)));
  bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d32)), hn::BitCast(d32, subnormal), bits);
  return hn::BitCast(d, hn::Or(bits, hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000)))));
}
HWY_INLINE void StoreVector(V v, F16* p) {
  const D d;
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<uint16_t, D> d16;
  const auto all = hn::BitCast(d32, v);
  const auto bits = hn::And(all, hn::Set(d32, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<16>(all), hn::Set(d32, 0x8000));
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(d32, 1));
  const auto normal = hn::ShiftRight<13>(
      hn::Add(hn::Sub(bits, hn::Set(d32, 112u << 23)), hn::Add(odd, hn::Set(d32, 0xfff))));
  const auto sum = hn::Add(hn::BitCast(d, bits), hn::Set(d, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(d32, sum), hn::Set(d32, 0x3f000000));
  const auto magnitude = hn::BitCast(di32, bits);
  auto half = hn::IfThenElse(hn::RebindMask(d32, hn::Lt(magnitude, hn::Set(di32, 0x38800000))),
                             subnormal, normal);
  half = hn::IfThenElse(hn::RebindMask(d32, hn::Gt(magnitude, hn::Set(di32, 0x477fffff))),
                        hn::Set(d32, 0x7c00), half);
  half = hn::IfThenElse(hn::RebindMask(d32, hn::Gt(magnitude, hn::Set(di32, 0x7f800000))),
                        hn::Set(d32, 0x7e00), half);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, hn::Or(half, sign))), d16,
             reinterpret_cast<uint16_t*>(p));
}
#endif

// How a loop body touches memory: a whole vector, or the last few elements of a row. A tail loads
// zeros past the end.
struct WholeVector {
  template <typename T>
  HWY_INLINE V Load(const T* p) const {
    return LoadVector(p);
  }
  template <typename T>
  HWY_INLINE void Store(V v, T* p) const {
    StoreVector(v, p);
  }
  // v where the lane holds an element, else 0.
  HWY_INLINE V Keep(V v) const { return v; }
};
struct Tail {
  size_t count = 0;

  template <typename T>
  HWY_INLINE V Load(const T* p) const {
    HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(buffer, p, count * sizeof(T));
    return LoadVector(buffer);
  }
  template <typename T>
  HWY_INLINE void Store(V v, T* p) const {
    HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)];
    StoreVector(v, buffer);
    std::memcpy(p, buffer, count * sizeof(T));
  }
  HWY_INLINE V Keep(V v) const { return hn::IfThenElseZero(hn::FirstN(D(), count), v); }
};

// Calls body(i, access) for i = 0, N, 2N, ... while i < count.
template <typename Body>
HWY_INLINE void ForVectors(int64_t count, const Body& body) {
  const int64_t lanes = hn::Lanes(D());
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, WholeVector());
  if (i < count) body(i, Tail{static_cast<size_t>(count - i)});
}

// Sum over count elements of value(i, access), on four chains because an addition takes four
// cycles. The values of a tail past the end are not counted.
template <typename Value>
HWY_INLINE float SumVectors(int64_t count, const Value& value) {
  const int64_t lanes = hn::Lanes(D());
  V sum0 = hn::Zero(D()), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = hn::Add(sum0, value(i, WholeVector()));
    sum1 = hn::Add(sum1, value(i + lanes, WholeVector()));
    sum2 = hn::Add(sum2, value(i + 2 * lanes, WholeVector()));
    sum3 = hn::Add(sum3, value(i + 3 * lanes, WholeVector()));
  }
  for (; i + lanes <= count; i += lanes) sum0 = hn::Add(sum0, value(i, WholeVector()));
  if (i < count) {
    const Tail tail{static_cast<size_t>(count - i)};
    sum1 = hn::Add(sum1, tail.Keep(value(i, tail)));
  }
  return hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// The sums of a pair of values over the same elements.
struct TwoVectors {
  V first;
  V second;
};
struct TwoSums {
  float first;
  float second;
};
template <typename Values>
HWY_INLINE TwoSums SumVectorPairs(int64_t count, const Values& values) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  TwoVectors even = {hn::Zero(d), hn::Zero(d)};
  TwoVectors odd = even;
  const auto add = [](const TwoVectors& value, TwoVectors* sum) HWY_ATTR {
    sum->first = hn::Add(sum->first, value.first);
    sum->second = hn::Add(sum->second, value.second);
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    add(values(i, WholeVector()), &even);
    add(values(i + lanes, WholeVector()), &odd);
  }
  for (; i < count; i += lanes) {
    const Tail tail{static_cast<size_t>(std::min(lanes, count - i))};
    const TwoVectors value = values(i, tail);
    add({tail.Keep(value.first), tail.Keep(value.second)}, &even);
  }
  return {hn::GetLane(hn::SumOfLanes(d, hn::Add(even.first, odd.first))),
          hn::GetLane(hn::SumOfLanes(d, hn::Add(even.second, odd.second)))};
}

// exp(x) for x in [-87, 87], where the result is a normal number. Relative error below 2e-7; half
// the instructions of Highway's own, which also covers the rest of the range.
HWY_INLINE V ExpInRange(V x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
  const V shifter = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shifter);
  const V n = hn::Sub(shifted, shifter);
  // r = x - n ln 2 in two parts; |r| <= 0.35.
  const V r =
      hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
  // The Taylor polynomial with its last two coefficients moved to spread the error (Cephes expf).
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(d, 1.0f)));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(du, p), exponent));
}

// 1 / x for x in [1, 2^126]. On x86 from the 12 or 14 bits of the hardware's estimate and one
// Newton step, a third of the time of a division and as exact to about one unit in the last place.
HWY_INLINE V Reciprocal(V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  const V estimate = hn::ApproximateReciprocal(x);
  const V error = hn::NegMulAdd(x, estimate, hn::Set(D(), 1.0f));
  return hn::MulAdd(estimate, error, estimate);
#else
  return hn::Div(hn::Set(D(), 1.0f), x);
#endif
}

// 1 / (1 + exp(-x)) and exp(-x) beside it, for 1 - sigmoid without cancellation. Relative error
// below 5e-7. Beyond +-87 both stay what they are there. A NaN is not kept; callers multiply by x
// again.
struct SigmoidParts {
  V sigmoid;
  V exp_minus;
};
HWY_INLINE SigmoidParts Sigmoid(V x) {
  const D d;
  const V z = hn::Min(hn::Max(hn::Neg(x), hn::Set(d, -87.0f)), hn::Set(d, 87.0f));
  const V e = ExpInRange(z);
  return {Reciprocal(hn::Add(hn::Set(d, 1.0f), e)), e};
}

// Calls f with a null pointer of the element type.
template <typename F>
HWY_INLINE void ByType(DType dtype, const F& f) {
  if (dtype == DType::kBF16) {
    f(static_cast<BF16*>(nullptr));
  } else if (dtype == DType::kF16) {
    f(static_cast<F16*>(nullptr));
  } else {
    f(static_cast<float*>(nullptr));
  }
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
