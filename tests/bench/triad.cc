// STREAM's triad on the widest vectors of the machine.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/triad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/triad.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::bench::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void TriadVectors(float* HWY_RESTRICT a, const float* HWY_RESTRICT b, const float* HWY_RESTRICT c,
                  int64_t n, bool streaming) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, 0.5f);
  const int64_t lanes = hn::Lanes(d);
  const auto value = [=](int64_t i) HWY_ATTR {
    return hn::MulAdd(scale, hn::LoadU(d, c + i), hn::LoadU(d, b + i));
  };
  if (streaming) {
    for (int64_t i = 0; i < n; i += lanes) hn::Stream(value(i), d, a + i);
    hwy::FlushStream();
  } else {
    for (int64_t i = 0; i < n; i += lanes) hn::Store(value(i), d, a + i);
  }
}

}  // namespace
}  // namespace terrace::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::bench {

HWY_EXPORT(TriadVectors);

void Triad(float* a, const float* b, const float* c, int64_t n, Stores stores) {
  HWY_DYNAMIC_DISPATCH(TriadVectors)(a, b, c, n, stores == Stores::kStreaming);
}

}  // namespace terrace::bench
#endif  // HWY_ONCE
