// Streaming copies on the widest vectors of the machine.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/stream_copy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stream_copy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// `to` is aligned to a cache line. Whole lines leave together: a line that is streamed in parts,
// with others between them, is written to memory in parts.
void StreamLines(uint8_t* HWY_RESTRICT to, const uint8_t* HWY_RESTRICT from, int64_t lines) {
  constexpr int64_t kLineBytes = 64;
  const hn::CappedTag<uint8_t, kLineBytes> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t i = 0; i < kLineBytes; i += lanes) {
      hn::Stream(hn::LoadU(d, from + i), d, to + i);
    }
    from += kLineBytes;
    to += kLineBytes;
  }
  hwy::FlushStream();
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(StreamLines);

void StreamCopy(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kLineBytes = 64;
  if (bytes < kStreamCopyBytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  const int64_t head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLineBytes);
  const int64_t lines = (bytes - head) / kLineBytes;
  const int64_t tail = head + lines * kLineBytes;
  std::memcpy(to, from, head);
  HWY_DYNAMIC_DISPATCH(StreamLines)
  (reinterpret_cast<uint8_t*>(to + head), reinterpret_cast<const uint8_t*>(from + head), lines);
  std::memcpy(to + tail, from + tail, bytes - tail);
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
