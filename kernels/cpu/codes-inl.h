// Codes of 8 bits as lanes of vectors of f32, and the largest magnitude of a block.
//
// Included once for each instruction set by foreach_target.h, after hwy/highway.h; hence no #pragma
// once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#if defined(TERRACE_KERNELS_CPU_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_CODES_INL_H_
#undef TERRACE_KERNELS_CPU_CODES_INL_H_
#else
#define TERRACE_KERNELS_CPU_CODES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {

using DI = hn::RebindToSigned<D>;
using DU = hn::RebindToUnsigned<D>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

// The last few of a block by `access`.
HWY_INLINE VI LoadCodes(const uint8_t* codes, WholeVector) {
  return hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<uint8_t, D>(), codes));
}
HWY_INLINE VI LoadCodes(const uint8_t* codes, const Tail& tail) {
  HWY_ALIGN uint8_t buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(buffer, codes, tail.count);
  return LoadCodes(buffer, WholeVector());
}
HWY_INLINE void StoreCodes(VI codes, uint8_t* to, WholeVector) {
  const hn::Rebind<uint8_t, D> d8;
  hn::StoreU(hn::DemoteTo(d8, codes), d8, to);
}
HWY_INLINE void StoreCodes(VI codes, uint8_t* to, const Tail& tail) {
  HWY_ALIGN uint8_t buffer[HWY_MAX_BYTES / sizeof(float)];
  StoreCodes(codes, buffer, WholeVector());
  std::memcpy(to, buffer, tail.count);
}

HWY_INLINE VU Magnitude(V value) {
  return hn::And(hn::BitCast(DU(), value), hn::Set(DU(), 0x7fffffff));
}

// The bits of the largest of all lanes.
HWY_INLINE uint32_t LargestBits(VU magnitudes) {
  HWY_ALIGN uint32_t lanes[HWY_MAX_BYTES / sizeof(uint32_t)];
  hn::Store(magnitudes, DU(), lanes);
  return *std::max_element(lanes, lanes + hn::Lanes(DU()));
}

}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard of one instruction set
