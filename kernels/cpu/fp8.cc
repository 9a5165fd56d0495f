// The largest magnitude and the rounding to 8 bits, on the vectors of any CPU.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fp8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fp8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <atomic>

#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// Of the numbers among a tile's elements; 0 when there is none.
float LargestOfTile(const Tile& tile) {
  float result = 0;
  ByType(tile.dtype[0], [&](auto* x_type) HWY_ATTR {
    const auto* x = tile.as<std::remove_pointer_t<decltype(x_type)>>(0);
    V largest = hn::Zero(D());
    ForVectors(tile.count, [&](int64_t i, auto access) HWY_ATTR {
      const V v = hn::Abs(access.Load(x + i));
      largest = hn::IfThenElse(hn::Gt(v, largest), v, largest);  // no NaN is larger
    });
    result = hn::GetLane(hn::MaxOfLanes(D(), largest));
  });
  return result;
}

// ToFp8 and back (kernels/fp8.h), on vectors of f32.
class Rounding {
 public:
  Rounding(Fp8Format format, float scale)
      : numbers_(NumbersOf(format)), scale_(hn::Set(D(), scale)) {}

  HWY_INLINE V Round(V x) const {
    const hn::RebindToUnsigned<D> u;
    const V v = hn::Mul(x, scale_);
    const auto bits = hn::BitCast(u, hn::Abs(v));
    const int dropped = 23 - numbers_.fraction_bits;
    const auto odd = hn::And(hn::ShiftRightSame(bits, dropped), hn::Set(u, 1));
    const auto up = hn::Add(hn::Add(bits, hn::Set(u, (1u << (dropped - 1)) - 1)), odd);
    const V normal = hn::BitCast(D(), hn::And(up, hn::Set(u, ~((1u << dropped) - 1))));
    // The sum's last bit is worth one quantum: the addition itself rounds.
    const V quanta = hn::Set(D(), numbers_.smallest_normal * static_cast<float>(1u << dropped));
    const V small = hn::Sub(hn::Add(hn::Abs(v), quanta), quanta);
    const auto is_small = hn::Lt(hn::Abs(v), hn::Set(D(), numbers_.smallest_normal));
    const V most = hn::Set(D(), numbers_.largest);
    const V rounded = hn::Min(hn::IfThenElse(is_small, small, normal), most);
    return hn::IfThenElse(hn::IsNaN(v), v, hn::CopySign(rounded, v));
  }

 private:
  const Fp8Numbers numbers_;
  const V scale_;
};

void QuantiseTile(const Tile& tile, Fp8Format format, float scale) {
  ByType(tile.dtype[0], [&](auto* x_type) HWY_ATTR {
    const auto* x = tile.as<std::remove_pointer_t<decltype(x_type)>>(0);
    BF16* y = tile.as<BF16>(1);
    const Rounding rounding(format, scale);
    ForVectors(tile.count, [=](int64_t i, auto access) HWY_ATTR {
      access.Store(rounding.Round(access.Load(x + i)), y + i);
    });
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(LargestOfTile);
HWY_EXPORT(QuantiseTile);

namespace {

// The largest is the same in whatever order it is looked for. Magnitudes are in the order of their
// bits.
float LargestMagnitude(const TensorView& x, int threads) {
  std::atomic<uint32_t> largest = 0;
  ForEachTile(std::span(&x, 1), threads, [&](const Tile& tile) {
    const uint32_t bits = F32Bits(HWY_DYNAMIC_DISPATCH(LargestOfTile)(tile));
    uint32_t known = largest.load(std::memory_order_relaxed);
    while (bits > known && !largest.compare_exchange_weak(known, bits, std::memory_order_relaxed)) {
    }
  });
  const uint32_t bits = largest.load(std::memory_order_relaxed);
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

Fp8Scale QuantiseFp8(const TensorView& from, const TensorView& to, Fp8Format format, int threads) {
  const Fp8Scale scale = ScaleOf(LargestMagnitude(from, threads), format);
  const TensorView operands[] = {from, to};
  ForEachTile(operands, threads, [&](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(QuantiseTile)(tile, format, scale.scale);
  });
  return scale;
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
